//! Changes of the manifest and of what it is made from.

use std::fs;
use std::io::Write;

use super::{Watching, count, file, site};
use crate::local::Desk;
use crate::signed_values::bucket;
use crate::support::nats::binaries;
use crate::support::single_node::SingleNodeFleet;

#[test]
fn only_new_and_changed_resources_run_and_removed_ones_are_left_alone() {
    let desk = Desk::new();
    let [same, changed, gone] = ["same", "changed", "gone"].map(|name| file(name, "one", ""));
    site(&desk, &[&same, &changed, &gone]);
    let watching = Watching::start(&desk, &[]);
    let (before, checks) = (watching.now(), count(&desk, "checks", "same"));
    site(&desk, &[&same, &file("changed", "two", ""), &file("new", "new", "")]);
    watching.says("watching site.yaml: 3 resources, 2 new or changed");
    watching.repairs(&desk, "new", "new\n");
    watching.sees(before, "new changed");
    assert_eq!(watching.words(before), ["changed changed", "new changed"]);
    assert!(count(&desk, "checks", "same") <= checks + 2, "one after its own write, one as its health check reads data");
    // A removed resource is no longer watched: the next drift after it is repaired alone.
    let before = watching.now();
    fs::write(desk.path("gone"), "drift").unwrap();
    fs::write(desk.path("same"), "drift").unwrap();
    watching.sees(before, "same changed");
    assert_eq!(watching.words(before), ["same changed"]);
    assert_eq!(fs::read_to_string(desk.path("gone")).unwrap(), "drift");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_value_of_a_bucket_puts_the_manifest_in_force_again() {
    let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
    let desk = Desk::new();
    bucket(&fleet).await;
    let put =
        async |text: &str| fleet.bus.put_value("conf", "site", format!("data: {{motd: {text}}}").into_bytes()).await.unwrap();
    put("one").await;
    site(&desk, &[&file("conf", "{{ Data.motd }}", "")]);
    let watching = Watching::start(&desk, &["--data", "kv://conf/site", "--nats", &fleet.server.url()]);
    watching.repairs(&desk, "conf", "one\n");
    put("two").await;
    watching.repairs(&desk, "conf", "two\n");
    // A wrong value leaves the previous one in force.
    fleet.bus.put_value("conf", "site", b"[".to_vec()).await.unwrap();
    watching.says("the previous one stays in force");
    fs::write(desk.path("conf"), "drift").unwrap();
    watching.repairs(&desk, "conf", "two\n");
    put("three").await;
    watching.repairs(&desk, "conf", "three\n");
    assert_eq!(watching.stop(), Some(0));
}

#[test]
fn a_broken_manifest_leaves_the_previous_one_in_force() {
    let desk = Desk::new();
    site(&desk, &[&file("conf", "one", "")]);
    let watching = Watching::start(&desk, &[]);
    desk.write("site.yaml", "ccm: [");
    watching.says("the new manifest is not applied; the previous one stays in force");
    assert!(watching.err().contains("error: site.yaml:1:6: "), "{}", watching.err());
    fs::write(desk.path("conf"), "drift").unwrap();
    watching.repairs(&desk, "conf", "one\n");
    site(&desk, &[&file("conf", "two", "")]);
    watching.repairs(&desk, "conf", "two\n");
    // No manifest is no order to forget.
    fs::remove_file(desk.path("site.yaml")).unwrap();
    watching.until("the second message", || watching.err().matches("stays in force").count() == 2);
    fs::write(desk.path("conf"), "drift").unwrap();
    watching.repairs(&desk, "conf", "two\n");
    assert_eq!(watching.stop(), Some(0));
}

#[test]
fn a_manifest_may_be_replaced_or_written_in_steps() {
    let desk = Desk::new();
    site(&desk, &[&file("conf", "one", "")]);
    let watching = Watching::start(&desk, &[]);
    let next = desk.fill(&fs::read_to_string(desk.path("site.yaml")).unwrap());
    desk.write("next", &next.replace("one", "two"));
    fs::rename(desk.path("next"), desk.path("site.yaml")).unwrap();
    watching.repairs(&desk, "conf", "two\n");
    // An editor that writes in place: what is read between the steps is no manifest.
    let text = next.replace("one", "three");
    let (head, tail) = text.split_at(text.find("ensure").unwrap());
    let mut site = fs::File::create(desk.path("site.yaml")).unwrap();
    site.write_all(head.as_bytes()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    site.write_all(tail.as_bytes()).unwrap();
    drop(site);
    watching.repairs(&desk, "conf", "three\n");
    assert!(!watching.err().contains("error"), "{}", watching.err());
}

#[test]
fn the_manifest_of_a_directory_is_followed() {
    let desk = Desk::new();
    site(&desk, &[&file("conf", "one", "")]);
    fs::create_dir(desk.path("dir")).unwrap();
    fs::rename(desk.path("site.yaml"), desk.path("dir/manifest.yaml")).unwrap();
    let watching = Watching::spawn(desk.command(&["apply", "--watch", "dir"]));
    watching.repairs(&desk, "conf", "one\n");
    let text = fs::read_to_string(desk.path("dir/manifest.yaml")).unwrap();
    fs::write(desk.path("dir/manifest.yaml"), text.replace("one", "two")).unwrap();
    watching.repairs(&desk, "conf", "two\n");
}

#[test]
fn data_facts_and_variables_are_followed() {
    let desk = Desk::new();
    let content = "{{ lookup('data.word') }} {{ lookup('facts.word') }} {{ Environ.WORD }}";
    site(&desk, &[&file("conf", content, ""), &file("other", "same", "")]);
    let [data, facts, variables] = [("data.yaml", "data:\n  word: "), ("facts.yaml", "word: "), (".env", "WORD=")];
    let write = |(name, text): (&str, &str), word: &str| desk.write(name, &format!("{text}{word}\n"));
    [data, facts, variables].into_iter().for_each(|source| write(source, "one"));
    let watching = Watching::start(&desk, &["--data", "data.yaml", "--facts", "facts.yaml"]);
    watching.repairs(&desk, "conf", "one one one\n");
    for (source, expected) in [(data, "two one one\n"), (facts, "two two one\n"), (variables, "two two two\n")] {
        let before = watching.now();
        write(source, "two");
        watching.repairs(&desk, "conf", expected);
        watching.sees(before, "conf changed");
        assert_eq!(watching.words(before), ["conf changed"]);
    }
    assert_eq!(watching.stop(), Some(0));
}

#[test]
fn facts_of_an_administrator_are_followed_in_a_directory_that_comes_later() {
    let desk = Desk::new();
    site(&desk, &[&file("conf", "{{ lookup('facts.word', 'none') }}", "")]);
    let watching = Watching::start(&desk, &[]);
    watching.repairs(&desk, "conf", "none\n");
    fs::create_dir_all(desk.path("home/.config/ensign/facts.d")).unwrap();
    desk.write("home/.config/ensign/facts.d/site.yaml", "word: one\n");
    watching.repairs(&desk, "conf", "one\n");
    desk.write("home/.config/ensign/facts.d/site.yaml", "word: two\n");
    watching.repairs(&desk, "conf", "two\n");
}

#[test]
fn the_files_that_templates_read_are_followed() {
    let desk = Desk::new();
    desk.write("word", "one");
    desk.write("late.j2", "one\n");
    let late = "file: {name: \"@D@/late\", ensure: present, content: \"{{ template(file('late.j2')) }}\", mode: \"0644\", @ME@}";
    site(&desk, &[&file("conf", "{{ file('word') }}", ""), late]);
    let watching = Watching::start(&desk, &[]);
    watching.repairs(&desk, "conf", "one\n");
    desk.write("word", "two");
    watching.repairs(&desk, "conf", "two\n");
    desk.write("late.j2", "two\n");
    watching.repairs(&desk, "late", "two\n");
}

#[test]
fn the_resources_of_a_nested_manifest_are_watched() {
    let desk = Desk::new();
    site(&desk, &[&file("conf", "inner", "")]);
    fs::rename(desk.path("site.yaml"), desk.path("inner.yaml")).unwrap();
    site(&desk, &["apply: {name: inner.yaml}"]);
    let watching = Watching::spawn(desk.command(&["apply", "--watch", "site.yaml"]));
    watching.repairs(&desk, "conf", "inner\n");
    fs::write(desk.path("conf"), "drift").unwrap();
    watching.repairs(&desk, "conf", "inner\n");
    let text = fs::read_to_string(desk.path("inner.yaml")).unwrap();
    fs::write(desk.path("inner.yaml"), text.replace("inner", "other")).unwrap();
    watching.repairs(&desk, "conf", "other\n");
    fs::remove_file(desk.path("conf")).unwrap();
    watching.repairs(&desk, "conf", "other\n");
}
