//! `ensign demo`: a whole fleet on this machine, in a few seconds: a server, three agents, rejections, drift.
//!
//! A command repairs the first drift, and an event of the kernel repairs the second.
//!
//! Every step is checked. The demonstration fails when a result is not as shown.

mod environment;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use crate::diag::Diagnostic;
use crate::fleet::job::seal;
use crate::fleet::{CommandDraft, NodeOutcome, NodeResult, SealedCommand};
use crate::host::{Host, fs};
use crate::model::HumanDuration;
use crate::trust::{Signer, SigningKey};
use crate::wire::command::{Apply, Assign, Channel, Ensure};
use crate::wire::{Action, Command, CommandOptions, Target};

use super::error::{CliError, Exit};
use super::fleet::send::deliver;
use super::fleet::source::ApplySource;
use super::fleet::status::{print_nodes, print_status};
use super::interrupt::Interrupt;
use super::ui::{Tone, Ui, text};
use environment::{DemoFleet, NODES, OPERATOR, find_server, write};

/// Longest run of a command.
const TIMEOUT: HumanDuration = HumanDuration::seconds(10);
/// Interval of the assignment: longer than the demonstration, so that only an event can cause the repair.
const INTERVAL: HumanDuration = HumanDuration::seconds(3600);

/// The manifest: every node has a directory of its own, which its facts name.
const MANIFEST: &str = r#"# A manifest: the desired state, in order.
ccm:
  resources:
    - file:
        - defaults:
            owner: "{{ Facts.uid }}"
            group: "{{ Facts.gid }}"
            mode: "0644"
        - "{{ Facts.site }}":
            ensure: directory
            mode: "0755"
        - "{{ Facts.site }}/motd":
            ensure: present
            content: "Managed by Ensign. Changes by hand are undone.\n"
        - "{{ Facts.site }}/app.conf":
            ensure: present
            source: app.conf
"#;

/// The file beside the manifest in the bundle.
const APP_CONF: &str = "listen = 8080\nworkers = 4\n";

/// Show a whole fleet on this machine: a server, three agents, signed work, rejections, repair.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// The nats-server to start, 2.10 or later; the one on PATH by default.
    #[arg(long, env = "NATS_SERVER", hide_env_values = true, value_name = "FILE")]
    nats_server: Option<PathBuf>,
    /// Keep the directory with configurations, keys and logs.
    #[arg(long)]
    keep: bool,
}

/// Runs the demonstration.
///
/// # Errors
/// When there is no server to start, or a result is not as expected.
pub fn run(args: &DemoArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let began = Instant::now();
    let binary = find_server(args.nats_server.as_deref())?;
    let runtime = tokio::runtime::Runtime::new().map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    let host = Host::system(None);
    let dir = std::env::temp_dir().join(format!("ensign-demo-{}", host.new_id().simple()));
    fs::create_directory(&dir, 0o700).map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    let told = runtime.block_on(async {
        // The drop of the story, finished or not, ends everything that it started.
        tokio::select! {
            told = run_steps(&dir, &binary, &host, ui) => told,
            () = Interrupt::default().listen() => Err(CliError::new(Exit::Partial, Diagnostic::new("interrupted"))),
        }
    });
    if args.keep || (told.is_err() && fs::exists(&dir)) {
        ui.message(text!("kept {}", dir.display()));
    } else {
        fs::remove_all(&dir).map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    }
    told?;
    print_manual_steps(ui);
    ui.message(text!("\neverything was as it should be, in {}", super::render::duration(began.elapsed())));
    Ok(Exit::Success)
}

/// Runs all steps.
async fn run_steps(dir: &Path, binary: &Path, host: &Host, ui: &mut Ui) -> Result<(), CliError> {
    title(ui, "A server, three agents, an operator's key, a trust bundle");
    let mut stage = DemoFleet::open(dir, binary, host).await?;
    ui.line(text!("  {} at {}", binary.display(), stage.session.operator.bus.servers.join(" ")));
    print_nodes(&stage.session, ui).await?;

    title(ui, "A signed manifest for all nodes");
    let accepted = apply(&stage, ui).await?;
    title(ui, "The same again: nothing to do");
    expect(&apply(&stage, ui).await?.1, &[(3, "stable")])?;

    title(ui, "A forged command: signed with another key, in the operator's name");
    forged_command(&stage, ui).await?;
    title(ui, "A replay: the id of an accepted command, with other work");
    replayed_command(&stage, &accepted.0, ui).await?;
    title(ui, "More than the node's owner allows: a file outside its own directory");
    beyond_limits(&stage, ui).await?;

    title(ui, "Drift: a user edits a file on web1 by hand; the next command repairs it");
    drift(&stage, ui).await?;
    title(ui, "The same in force: an assignment whose nodes watch their files");
    assign(&mut stage, ui).await?;
    title(ui, "Drift again: web1 repairs it without a command");
    repair_by_event(&stage, ui)?;

    title(ui, "The fleet");
    print_status(&stage.session, ui).await?;
    print_nodes(&stage.session, ui).await?;

    title(ui, "The end: everything is stopped in order");
    let began = Instant::now();
    if !stage.close().await {
        return Err(unexpected_result("an agent did not stop in order".to_owned()));
    }
    ui.line(text!("  stopped in {}", super::render::duration(began.elapsed())));
    Ok(())
}

fn title(ui: &mut Ui, text: &str) {
    let painted = ui.paint(Tone::Success, text);
    ui.line(text!("\n{}", painted));
    ui.flush();
}

fn unexpected_result(message: String) -> CliError {
    CliError::new(Exit::Failed, Diagnostic::new(message))
        .hint("this should not happen: the logs are in the directory that is kept")
}

/// Checks the results against the expected counts.
fn expect(results: &[NodeResult], wanted: &[(usize, &str)]) -> Result<(), CliError> {
    for (count, word) in wanted {
        let found = results.iter().filter(|result| result.outcome.as_str() == *word).count();
        if found != *count {
            return Err(unexpected_result(format!("{found} nodes are {word}, not {count}")));
        }
    }
    Ok(())
}

fn sign(command: Command, key: &dyn Signer) -> Result<SealedCommand, CliError> {
    seal::sign(command, &[(OPERATOR, key)]).map_err(|error| CliError::from_error(Exit::Failed, &error))
}

fn command(stage: &DemoFleet, action: Action, to: Target) -> Command {
    let options = CommandOptions { timeout: TIMEOUT, ..CommandOptions::default() };
    let channel = action.is_desired_state().then(|| Channel { name: "base".to_owned(), epoch: 1, serial: 1 });
    let order = CommandDraft { action, to, options, channel, reason: Some("demonstration".to_owned()), lifetime: TIMEOUT };
    order.command(&stage.session.operator.fleet, stage.session.host.new_id(), stage.session.now())
}

async fn deliver_here(stage: &DemoFleet, signed: &SealedCommand, ui: &mut Ui) -> Result<Vec<NodeResult>, CliError> {
    let expected = stage.session.states().await?.expected(&signed.command.to);
    let followed = deliver(signed, expected, TIMEOUT.as_std(), &stage.session, ui).await?;
    Ok(followed.results)
}

/// Packs and uploads the manifest.
async fn upload(stage: &DemoFleet, ui: &mut Ui) -> Result<Apply, CliError> {
    let bundle = stage.dir.join("bundle");
    write(&bundle.join("manifest.yaml"), MANIFEST)?;
    write(&bundle.join("app.conf"), APP_CONF)?;
    ApplySource::from_path(&bundle)?.pin(&stage.session, ui).await
}

/// Uploads, signs and sends the manifest.
async fn apply(stage: &DemoFleet, ui: &mut Ui) -> Result<(SealedCommand, Vec<NodeResult>), CliError> {
    let uploaded = upload(stage, ui).await?;
    let signed = sign(command(stage, Action::Apply(uploaded), Target::all()), stage.operator.key.as_ref())?;
    let results = deliver_here(stage, &signed, ui).await?;
    for (node, _) in NODES {
        let path = stage.site(node).join("app.conf");
        if fs::read_named_text(&path, 1024).is_ok_and(|text| text == APP_CONF) {
            continue;
        }
        return Err(unexpected_result(format!("{} is not as the manifest says", path.display())));
    }
    Ok((signed, results))
}

fn motd(stage: &DemoFleet, node: &str) -> Action {
    let properties = json!({
        "name": stage.site(node).join("motd"),
        "ensure": "present",
        "content": "forged\n",
        "owner": crate::host::account::effective_uid().to_string(),
        "group": crate::host::account::effective_gid().to_string(),
        "mode": "0644",
    });
    ensure(properties)
}

fn ensure(properties: serde_json::Value) -> Action {
    let properties = if let serde_json::Value::Object(properties) = properties { properties } else { serde_json::Map::new() };
    Action::Ensure(Ensure { kind: "file".to_owned(), properties })
}

fn to(node: &str) -> Result<Target, CliError> {
    let node = node.parse().map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    Ok(Target::nodes(vec![node]))
}

/// Checks that one node has refused with this code.
fn expect_refused(results: &[NodeResult], code: &str) -> Result<(), CliError> {
    match results {
        [NodeResult { outcome: NodeOutcome::Refused(found), .. }] if found == code => Ok(()),
        other => Err(unexpected_result(format!(
            "not refused with {code}: {:?}",
            other.iter().map(|result| &result.outcome).collect::<Vec<_>>()
        ))),
    }
}

async fn forged_command(stage: &DemoFleet, ui: &mut Ui) -> Result<(), CliError> {
    let mallory = SigningKey::generate().map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    let signed = sign(command(stage, motd(stage, "web1"), to("web1")?), &mallory)?;
    expect_refused(&deliver_here(stage, &signed, ui).await?, "bad_signature")
}

async fn replayed_command(stage: &DemoFleet, accepted: &SealedCommand, ui: &mut Ui) -> Result<(), CliError> {
    let other = Command { id: accepted.command.id, ..command(stage, motd(stage, "web1"), to("web1")?) };
    let signed = sign(other, stage.operator.key.as_ref())?;
    expect_refused(&deliver_here(stage, &signed, ui).await?, "replayed")
}

async fn beyond_limits(stage: &DemoFleet, ui: &mut Ui) -> Result<(), CliError> {
    let outside = ensure(json!({"name": stage.dir.join("outside"), "ensure": "absent"}));
    let signed = sign(command(stage, outside, to("web1")?), stage.operator.key.as_ref())?;
    expect_refused(&deliver_here(stage, &signed, ui).await?, "local_limit")
}

fn edit_by_hand(stage: &DemoFleet, ui: &mut Ui) -> Result<PathBuf, CliError> {
    let path = stage.site("web1").join("motd");
    ui.line(text!("  $ echo 'edited by hand' > {}", path.display()));
    write(&path, "edited by hand\n")?;
    Ok(path)
}

fn is_repaired(path: &Path) -> bool {
    fs::read_named_text(path, 1024).is_ok_and(|text| text.starts_with("Managed by Ensign"))
}

async fn drift(stage: &DemoFleet, ui: &mut Ui) -> Result<(), CliError> {
    let path = edit_by_hand(stage, ui)?;
    let (_, results) = apply(stage, ui).await?;
    expect(&results, &[(1, "changed"), (2, "stable")])?;
    if is_repaired(&path) { Ok(()) } else { Err(unexpected_result(format!("{} was not repaired", path.display()))) }
}

/// Assigns the manifest to all nodes, and waits until each of them watches.
async fn assign(stage: &mut DemoFleet, ui: &mut Ui) -> Result<(), CliError> {
    let manifest = upload(stage, ui).await?;
    let (splay, health_interval) = (HumanDuration::seconds(0), None);
    let assign = Assign { manifest, interval: INTERVAL, health_interval, splay, enforce: true, watch: true };
    let signed = sign(command(stage, Action::Assign(assign), Target::all()), stage.operator.key.as_ref())?;
    expect(&deliver_here(stage, &signed, ui).await?, &[(3, "stable")])?;
    stage.wait_until_watched().await
}

/// Edits a watched file, and measures the time until its repair.
fn repair_by_event(stage: &DemoFleet, ui: &mut Ui) -> Result<(), CliError> {
    let path = edit_by_hand(stage, ui)?;
    let edited = Instant::now();
    while !is_repaired(&path) {
        if edited.elapsed() > TIMEOUT.as_std() {
            return Err(unexpected_result(format!("{} was not repaired by an event", path.display())));
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    ui.line(text!("  repaired {} after the edit", super::render::duration(edited.elapsed())));
    Ok(())
}

/// Prints the steps for real machines.
fn print_manual_steps(ui: &mut Ui) {
    ui.line(text!("\nThe same by hand, for a fleet called prod:"));
    for (command, what) in [
        ("ensign key new root.key; ensign key new ops-alice.key", "once: a root key, and a key of an operator"),
        (
            "ensign trust init --fleet prod --root root.key --operator ops-alice=ops-alice.key.pub",
            "the trust bundle, and [trust] for agent.toml",
        ),
        (
            "nats-server -c deploy/nats/ensign.conf; ensign fleet init --fleet prod",
            "the server with your own nkeys in it (ensign key new --nats); its streams",
        ),
        ("ensign agent run --config /etc/ensign/agent.toml", "on every node"),
        ("ensign fleet apply site/ --all --fleet prod --key ops-alice.key", "a directory with a manifest.yaml"),
    ] {
        ui.line(text!("  {}\n      {}", command, ui.paint(Tone::Dim, what)));
    }
    ui.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_held_to_what_they_must_be() {
        let result = |outcome| NodeResult::new("a".parse().unwrap(), outcome, None);
        let results = [result(NodeOutcome::Refused("replayed".into()))];
        assert!(expect_refused(&results, "replayed").is_ok());
        assert!(expect_refused(&results, "bad_signature").is_err());
        assert!(expect_refused(&[result(NodeOutcome::Changed)], "replayed").is_err());
        assert!(expect_refused(&[], "replayed").is_err());
        assert!(expect(&results, &[(1, "refused"), (0, "stable")]).is_ok());
        assert!(expect(&results, &[(1, "stable")]).is_err());
    }
}
