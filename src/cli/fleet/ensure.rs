//! `ensign fleet ensure`: one resource on many nodes.

use clap::Args;
use serde_json::Value;

use crate::resource::{self, Common};
use crate::wire::Action;
use crate::wire::command::Ensure;

use super::super::error::{Exit, Failure};
use super::super::properties::Described;
use super::super::ui::Ui;
use super::report::send;
use super::session::Context;
use super::target::TargetArgs;

#[derive(Debug, Args)]
pub(super) struct EnsureArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(subcommand)]
    what: Described,
}

pub(super) async fn run(args: EnsureArgs, context: &Context, ui: &mut Ui) -> Result<Exit, Failure> {
    let EnsureArgs { target, what } = args;
    let action = Action::Ensure(wanted(what)?);
    // Before anything is asked of anybody.
    let order = target.order(action, None)?;
    let session = context.open().await?;
    Ok(send(order, &target, &session, ui).await?.exit)
}

/// What is wanted, in full. What a node would not understand is found here, before it is sent.
fn wanted(what: Described) -> Result<Ensure, Failure> {
    let Described { kind, mut properties } = what;
    if kind == "file" {
        properties.entry("ensure").or_insert_with(|| Value::from("present"));
    }
    let mut own = properties.clone();
    own.retain(|key, _| !Common::KEYS.contains(&key.as_str()));
    // What a template comes to, only the node knows.
    let literal = !own.values().any(|value| value.to_string().contains("{{"));
    if let Some(kind) = resource::find(kind).filter(|_| literal) {
        kind.decode(own).map_err(|error| {
            let failure = Failure::from_error(Exit::Usage, &error);
            match error.hint {
                Some(hint) => failure.hint(hint),
                None => failure,
            }
        })?;
    }
    Ok(Ensure { kind: kind.to_owned(), properties })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_no_node_would_understand_is_not_sent() {
        let file = |more: Value| {
            let mut properties = serde_json::Map::from_iter([("name".to_owned(), json!("/tmp/x"))]);
            properties.extend(more.as_object().unwrap().clone());
            wanted(Described { kind: "file", properties })
        };
        let good = file(json!({"owner": "root", "group": "root", "mode": "0644", "alias": "x"})).unwrap();
        assert_eq!((good.properties["ensure"].as_str(), good.properties["alias"].as_str()), (Some("present"), Some("x")));
        assert!(
            file(json!({"owner": "root", "group": "root", "mode": "rw"})).unwrap_err().diagnostics[0].message.contains("mode")
        );
        assert!(file(json!({"owner": "root"})).is_err(), "no group, no mode");
        assert!(file(json!({"owner": "{{ Facts.owner }}", "group": "root", "mode": "0644"})).is_ok());
        assert!(file(json!({"ensure": "absent"})).is_ok());
    }
}
