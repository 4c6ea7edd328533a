//! Distribution facts: name, family and version.

/// A distribution.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Platform {
    /// Its name in lower case; "" when unknown.
    pub(super) name: String,
    /// The family it belongs to; "" when unknown.
    pub(super) family: &'static str,
    /// Its version; "" where it has none.
    pub(super) version: String,
}

/// Returns the distribution. The texts are those of `/etc/os-release`, `/etc/debian_version` and `/etc/redhat-release`, empty
/// where a file is missing. The last two have the minor version.
pub(super) fn platform(os_release: &str, debian_version: &str, redhat_release: &str) -> Platform {
    let id = value(os_release, "ID").to_lowercase();
    let name = match id.as_str() {
        "rhel" => "redhat",
        "ol" => "oracle",
        "amzn" => "amazon",
        "xs" => "xenserver",
        other => other,
    };
    let like = value(os_release, "ID_LIKE").to_lowercase();
    // An unlisted derivative belongs to the family of the first entry in `ID_LIKE`.
    let family = std::iter::once(name).chain(like.split_whitespace()).find_map(family_of).unwrap_or_default();
    let exact = match name {
        "debian" | "raspbian" => debian_version.trim(),
        _ if matches!(family, "rhel" | "fedora") => redhat_version(redhat_release),
        _ => "",
    };
    // An unreleased Debian has `trixie/sid`.
    let exact = Some(exact).filter(|version| version.starts_with(|first: char| first.is_ascii_digit()));
    let version = exact.map_or_else(|| value(os_release, "VERSION_ID"), str::to_owned);
    Platform { name: name.to_owned(), family, version }
}

/// Returns a value of a file in the form of `/etc/os-release`: assignments of the shell.
fn value(text: &str, name: &str) -> String {
    let assigned = text.lines().filter_map(|line| line.trim().split_once('=')).find(|(key, _)| *key == name);
    let Some((_, raw)) = assigned else { return String::new() };
    shell_words::split(raw).map_or_else(|_| raw.to_owned(), |words| words.join(" "))
}

/// Returns the word after `release`, as in `CentOS Linux release 7.9.2009 (Core)`.
fn redhat_version(text: &str) -> &str {
    text.split_whitespace().skip_while(|word| *word != "release").nth(1).unwrap_or_default()
}

fn family_of(name: &str) -> Option<&'static str> {
    Some(match name {
        "debian" | "ubuntu" | "linuxmint" | "raspbian" | "kali" | "devuan" | "pop" | "neon" | "deepin" | "uos" => "debian",
        "fedora" => "fedora",
        "rhel"
        | "redhat"
        | "oracle"
        | "centos"
        | "scientific"
        | "amazon"
        | "xenserver"
        | "cloudlinux"
        | "rocky"
        | "almalinux"
        | "enterpriseenterprise"
        | "ibm_powerkvm"
        | "virtuozzo"
        | "eurolinux" => "rhel",
        "arch" | "archarm" | "manjaro" | "endeavouros" => "arch",
        "gentoo" => "gentoo",
        "slackware" => "slackware",
        "alpine" => "alpine",
        "coreos" | "flatcar" => "coreos",
        "solus" => "solus",
        "exherbo" => "exherbo",
        "openwrt" => "openwrt",
        "nixos" => "nixos",
        name if name.starts_with("opensuse") || name.starts_with("sle") || name == "suse" => "suse",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEBIAN: &str = r#"PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"
NAME="Debian GNU/Linux"
VERSION_ID="12"
VERSION="12 (bookworm)"
VERSION_CODENAME=bookworm
ID=debian
HOME_URL="https://www.debian.org/"
"#;

    const FEDORA: &str = r#"NAME="Fedora Linux"
VERSION="41 (Server Edition)"
RELEASE_TYPE=stable
ID=fedora
VERSION_ID=41
VERSION_CODENAME=""
PLATFORM_ID="platform:f41"
PRETTY_NAME="Fedora Linux 41 (Server Edition)"
ANSI_COLOR="0;38;2;60;110;180"
VARIANT_ID=server
"#;

    const TRIXIE: &str = "PRETTY_NAME=\"Debian GNU/Linux trixie/sid\"\nID=debian\n";
    const UBUNTU: &str = "NAME=\"Ubuntu\"\nVERSION_ID=\"24.04\"\nID=ubuntu\nID_LIKE=debian\n";
    const ROCKY: &str = "NAME=\"Rocky Linux\"\nID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\nVERSION_ID=\"9.3\"\n";
    const CENTOS: &str = "NAME=\"CentOS Linux\"\nVERSION_ID=\"7\"\nID=\"centos\"\nID_LIKE=\"rhel fedora\"\n";

    #[test]
    fn distributions_have_names_families_and_versions() {
        let cases = [
            (DEBIAN, "12.11\n", "", ("debian", "debian", "12.11")),
            (DEBIAN, "", "", ("debian", "debian", "12")),
            (TRIXIE, "trixie/sid\n", "", ("debian", "debian", "")),
            (FEDORA, "", "Fedora release 41 (Forty One)\n", ("fedora", "fedora", "41")),
            (FEDORA, "", "Fedora release Rawhide\n", ("fedora", "fedora", "41")),
            // Ubuntu has this file too, with the name of a Debian release.
            (UBUNTU, "trixie/sid\n", "", ("ubuntu", "debian", "24.04")),
            (ROCKY, "", "Rocky Linux release 9.3 (Blue Onyx)\n", ("rocky", "rhel", "9.3")),
            (CENTOS, "", "CentOS Linux release 7.9.2009 (Core)\n", ("centos", "rhel", "7.9.2009")),
            ("ID=\"rhel\"\nVERSION_ID=\"9.4\"\n", "", "", ("redhat", "rhel", "9.4")),
            ("ID=\"ol\"\nVERSION_ID=\"8.9\"\nID_LIKE=\"fedora\"\n", "", "", ("oracle", "rhel", "8.9")),
            ("ID=\"amzn\"\nID_LIKE=\"fedora\"\nVERSION_ID=\"2023\"\n", "", "", ("amazon", "rhel", "2023")),
            ("ID=\"opensuse-leap\"\nVERSION_ID=\"15.6\"\n", "", "", ("opensuse-leap", "suse", "15.6")),
            ("ID='sles'\nVERSION_ID='15.5'\n", "", "", ("sles", "suse", "15.5")),
            ("ID=\"xs\"\nVERSION_ID=8\n", "", "", ("xenserver", "rhel", "8")),
            ("ID=flatcar\nID_LIKE=coreos\nVERSION_ID=3975.2.0\n", "", "", ("flatcar", "coreos", "3975.2.0")),
            ("ID=alpine\nVERSION_ID=3.20.1\n", "", "", ("alpine", "alpine", "3.20.1")),
            ("ID=arch\nBUILD_ID=rolling\n", "", "", ("arch", "arch", "")),
            ("ID=cachyos\nID_LIKE=arch\n", "", "", ("cachyos", "arch", "")),
            ("ID=elsewhere\nVERSION_ID=1\n", "", "", ("elsewhere", "", "1")),
            ("", "", "", ("", "", "")),
        ];
        for (os_release, debian, redhat, (name, family, version)) in cases {
            let expected = Platform { name: name.to_owned(), family, version: version.to_owned() };
            assert_eq!(platform(os_release, debian, redhat), expected, "{os_release}");
        }
    }
}
