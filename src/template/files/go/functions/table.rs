//! The table of all functions, and the functions left out on purpose.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::function::GoFunction;
use super::{builtin, context_functions, data, date, encode, letters, list, number, path, regexes, text, url};

static TABLES: &[&[GoFunction]] = &[
    builtin::TABLE,
    text::TABLE,
    letters::TABLE,
    number::TABLE,
    list::TABLE,
    data::TABLE,
    encode::TABLE,
    date::TABLE,
    path::TABLE,
    regexes::TABLE,
    context_functions::TABLE,
    url::TABLE,
];

static BY_NAME: LazyLock<HashMap<&'static str, &'static GoFunction>> =
    LazyLock::new(|| TABLES.iter().copied().flatten().map(|function| (function.name, function)).collect());

/// The functions left out on purpose, with the reason.
const LEFT_OUT: &[(&[&str], &str)] = &[
    (
        &["randAlphaNum", "randAlpha", "randAscii", "randNumeric", "randBytes", "randInt", "shuffle", "uuidv4", "ago"],
        "its value differs every time, so the file would never be up to date; put the value into the data",
    ),
    (&["getHostByName"], "templates do not use the network; put the address into the data"),
    (&["include"], "it is Helm's; {{ render \"_partials/file\" . }} renders a file, {{ template \"name\" . }} renders a define"),
    (&["toYaml", "fromYaml"], "they are Helm's; use toJson, as YAML can read JSON"),
    (
        &["semver", "semverCompare"],
        "versions are compared where packages are installed; here, split them and compare their parts as numbers",
    ),
    (
        &[
            "bcrypt",
            "htpasswd",
            "genPrivateKey",
            "derivePassword",
            "buildCustomCert",
            "genCA",
            "genCAWithKey",
            "genSelfSignedCert",
            "genSelfSignedCertWithKey",
            "genSignedCert",
            "genSignedCertWithKey",
            "encryptAES",
            "decryptAES",
        ],
        "templates make no keys and keep no secrets; put the value into the data, or ask for it with lookup",
    ),
    (&["call"], "no value is a function here"),
    (&["template"], "it is a statement here: {{ template \"name\" . }}; files are rendered with render"),
];

/// Returns the function of a name.
pub(in crate::template::files::go) fn find(name: &str) -> Option<&'static GoFunction> {
    BY_NAME.get(name).copied()
}

/// Returns the names of all functions.
pub(in crate::template::files::go) fn names() -> impl Iterator<Item = &'static str> {
    TABLES.iter().copied().flatten().map(|function| function.name)
}

/// Returns the reason to leave out a well-known function.
pub(in crate::template::files::go) fn left_out(name: &str) -> Option<&'static str> {
    LEFT_OUT.iter().find(|(names, _)| names.contains(&name)).map(|(_, why)| *why)
}
