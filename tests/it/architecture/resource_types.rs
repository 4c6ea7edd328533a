//! Holds resource types to `src/resource`: no other code names a type, except where the word means something else.

use proc_macro2::TokenTree;
use syn::Lit;

use crate::support::source::{each_token, sources};

/// Paths below `src/` with words that are also names of types, and the meaning of the words there.
const OTHER_MEANINGS: &[(&str, &[&str], &str)] = &[
    ("cli/args/properties.rs", &["group"], "the group of a file, and a flag"),
    ("cli/demo/", &["file", "group"], "the resource that the demo manages"),
    ("cli/fleet/plan.rs", &["file"], "a key of the output"),
    ("cli/kv.rs", &["file"], "a flag"),
    ("cli/local/ensure.rs", &["group"], "the group of a file"),
    ("cli/local/manifest_source.rs", &["file"], "the scheme of a URL"),
    ("cli/registration.rs", &["service"], "a key of a registration"),
    ("config/", &["group", "mount", "user"], "keys of the configuration"),
    ("engine/secret_source.rs", &["file"], "the scheme of a secret"),
    ("goss/", &["exec", "file", "group", "mount", "package", "service", "user"], "the language of Goss"),
    ("cli/fleet/plan_output.rs", &["group"], "a group of nodes"),
    ("config/settings.rs", &["group"], "a group of nodes"),
    ("fleet/account/claims.rs", &["user"], "a type of NATS JWTs"),
    ("fleet/account/users.rs", &["group", "user"], "a type of NATS JWTs, and tags of users"),
    ("host/account.rs", &["group", "user"], "kinds of accounts"),
    ("host/lstat.rs", &["file", "symlink"], "kinds of files"),
    ("host/passwd.rs", &["group"], "a file of /etc"),
    ("manifest/fetch/", &["file"], "the scheme of a URL"),
    ("model/effects.rs", &["apply", "exec"], "RUN_GRANT and NESTED_GRANT: the words of owners in limits and rules"),
    ("model/registration.rs", &["service"], "a key of a registration"),
    ("template/", &["exec", "file", "service"], "functions of templates, and keys of registrations"),
    ("trust/decide/limits.rs", &["file"], "the scheme of a URL"),
    ("cli/fleet/node_selection.rs", &["group"], "a group of nodes"),
    ("cli/fleet/admit.rs", &["group"], "a group of nodes"),
    ("cli/fleet/token.rs", &["group"], "a group of nodes"),
    ("trust/decide/join/mod.rs", &["user"], "a user key of NATS"),
    ("wire/action.rs", &["apply"], "an action"),
    ("wire/target.rs", &["group"], "a group of nodes"),
    ("wire/subject.rs", &["group"], "a token of subjects"),
];

#[test]
fn only_the_table_of_types_names_a_type() {
    let types: Vec<&str> = ensign::resource::TYPES.iter().map(|kind| kind.name()).collect();
    let (mut wrong, mut unused) = (
        Vec::new(),
        OTHER_MEANINGS.iter().flat_map(|(path, words, _)| words.iter().map(move |word| (*path, *word))).collect::<Vec<_>>(),
    );
    for source in sources().iter().filter(|source| !source.path.starts_with("resource/")) {
        each_token(&source.tokens, &mut |token| {
            let TokenTree::Literal(literal) = token else { return };
            let Lit::Str(text) = Lit::new(literal.clone()) else { return };
            let text = text.value();
            if !types.contains(&text.as_str()) {
                return;
            }
            let has_other_meaning =
                |(path, words, _): &(&str, &[&str], &str)| source.path.starts_with(path) && words.contains(&text.as_str());
            if !OTHER_MEANINGS.iter().any(has_other_meaning) {
                wrong.push(format!("src/{}:{}: {text:?}", source.path, literal.span().start().line));
            }
            unused.retain(|(path, word)| !(source.path.starts_with(path) && *word == text));
        });
        let code = source.code();
        wrong.extend(code.contains("resource::types::").then(|| format!("src/{}: resource::types", source.path)));
    }
    let hint = "use a property of the type in the table, or list another meaning of the word in OTHER_MEANINGS";
    assert!(wrong.is_empty(), "these name a resource type; {hint}: {wrong:#?}");
    assert!(unused.is_empty(), "OTHER_MEANINGS has unused words: {unused:?}");
}
