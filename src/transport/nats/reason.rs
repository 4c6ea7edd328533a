//! Texts about a failed connection, for people. The client and its TLS report symptoms; this module names the cause.

/// The meaning of a part of the client's text.
const MEANINGS: &[(&str, &str)] = &[
    ("InvalidContentType", "the server does not speak TLS, and TLS is required"),
    ("CertificateRequired", "the server asks for a client certificate, and there is none"),
    ("UnknownIssuer", "the certificate of the server is of an authority that is not trusted"),
    ("BadSignature", "the certificate of the server is not of the authority that it names"),
    ("not valid for name", "the certificate of the server is for another name"),
    ("alert: UnknownCA", "the server does not trust the authority of our certificate"),
    ("alert: BadCertificate", "the server does not accept our certificate"),
];

/// Returns the meaning of the client's text where known, followed by the text.
pub(super) fn reason(text: &str) -> String {
    let plain = text.strip_prefix("IO error: ").unwrap_or(text);
    match MEANINGS.iter().find(|(part, _)| plain.contains(part)) {
        Some((_, meaning)) => format!("{meaning} ({plain})"),
        None => plain.to_owned(),
    }
}

/// Returns a server URL without its password, for messages.
pub(super) fn hide_password(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => {
            let (start, end) = (url.get(..scheme + 3).unwrap_or_default(), url.get(at..).unwrap_or_default());
            format!("{start}***{end}")
        }
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meanings_precede_the_text() {
        for (text, wanted) in [
            ("IO error: Connection refused (os error 111)", "Connection refused (os error 111)"),
            ("authorization violation: nats: authorization violation", "authorization violation: nats: authorization violation"),
            (
                "IO error: received fatal alert: CertificateRequired",
                "the server asks for a client certificate, and there is none (received fatal alert: CertificateRequired)",
            ),
        ] {
            assert_eq!(reason(text), wanted);
        }
    }
}
