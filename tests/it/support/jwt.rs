//! The operator mode of NATS, made by hand: JSON web tokens of version 2, signed with nkeys.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::{Value, json};

/// An operator, its one account, and their configuration for a server.
pub struct Operator {
    account: KeyPair,
    /// Lines for the server's configuration.
    pub config: String,
}

impl Operator {
    pub fn new() -> Self {
        let (operator, account) = (KeyPair::new_operator(), KeyPair::new_account());
        let own = token(&operator, &operator.public_key(), "operator", json!({}));
        let limits = json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1
        });
        let of_account = token(&operator, &account.public_key(), "account", json!({"limits": limits}));
        let config = format!(
            "operator: \"{own}\"\nresolver: MEMORY\nresolver_preload: {{ {}: \"{of_account}\" }}\n",
            account.public_key()
        );
        Self { account, config }
    }

    /// The content of a `.creds` file for a new user of the account.
    pub fn user(&self, more: &Value) -> String {
        let user = KeyPair::new_user();
        let mut claims = json!({"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1});
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        creds(&token(&self.account, &user.public_key(), "user", claims), &user.seed().unwrap())
    }
}

/// A `.creds` file, as NATS tools write it.
fn creds(token: &str, seed: &str) -> String {
    format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
         ************************* IMPORTANT *************************\n\
         NKEY Seed printed below can be used to sign and prove identity.\n\
         NKEYs are sensitive and should be treated as secrets.\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
}

/// A token of `issuer` about `subject`.
fn token(issuer: &KeyPair, subject: &str, kind: &str, mut nats: Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    nats["type"] = kind.into();
    nats["version"] = 2.into();
    let now = jiff::Timestamp::now().as_second();
    let claims = json!({"jti": "TEST", "iat": now, "iss": issuer.public_key(), "name": kind, "sub": subject, "nats": nats});
    let signed = format!("{}.{}", part(&json!({"typ": "JWT", "alg": "ed25519-nkey"})), part(&claims));
    let signature = URL_SAFE_NO_PAD.encode(issuer.sign(signed.as_bytes()).unwrap());
    format!("{signed}.{signature}")
}
