//! The probes of users and groups, from the files of this host (passwd(5), group(5)). Directory services are not read.

use super::probe::{Attributes, ProbeContext, ProbedValue, found_value, read_system_file};

/// A user.
pub(super) fn user(look: &ProbeContext<'_>) -> Result<Attributes, String> {
    let name = look.name("username");
    let passwd = read_system_file("/etc/passwd")?;
    let fields = entry(&passwd, &name);
    let mut found = Attributes::from([("exists", found_value(fields.is_some()))]);
    let Some([_, _, uid, gid, _, home, shell, ..]) = fields.as_deref() else { return Ok(found) };
    found.extend([("uid", number(uid)), ("gid", number(gid)), ("home", found_value(*home)), ("shell", found_value(*shell))]);
    if look.is_wanted("groups") {
        found.insert("groups", found_value(groups(&read_system_file("/etc/group")?, &name, gid)));
    }
    Ok(found)
}

/// A group.
pub(super) fn group(look: &ProbeContext<'_>) -> Result<Attributes, String> {
    let groups = read_system_file("/etc/group")?;
    let fields = entry(&groups, &look.name("groupname"));
    let mut found = Attributes::from([("exists", found_value(fields.is_some()))]);
    if let Some([_, _, gid, ..]) = fields.as_deref() {
        found.insert("gid", number(gid));
    }
    Ok(found)
}

fn number(text: &str) -> Result<ProbedValue, String> {
    found_value(text.parse::<u32>().map_err(|_| format!("\"{text}\" is no number"))?)
}

/// The fields of the line that begins with a name.
fn entry<'a>(file: &'a str, name: &str) -> Option<Vec<&'a str>> {
    file.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields.first() == Some(&name))
}

/// The groups of a user: the primary group by number, and the groups with the user as a member.
fn groups(file: &str, user: &str, gid: &str) -> Vec<String> {
    let fields = file.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let of_user = |fields: &[&str]| match fields {
        [name, _, number, members, ..] => {
            (*number == gid || members.split(',').any(|member| member == user)).then(|| (*name).to_owned())
        }
        _ => None,
    };
    let mut found: Vec<String> = fields.filter_map(|fields| of_user(&fields)).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_number_and_by_member() {
        let file = "root:x:0:\nwww:x:33:deploy,adm\nzz:x:1000:\nadm:x:4:deploy\nbroken\n";
        assert_eq!(groups(file, "deploy", "1000"), ["adm", "www", "zz"]);
        assert_eq!(groups(file, "dep", "7"), Vec::<String>::new());
        assert_eq!(entry(file, "www").unwrap()[2], "33");
        assert_eq!(entry(file, "ww"), None);
    }
}
