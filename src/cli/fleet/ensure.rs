//! `ensign fleet ensure`: one resource on many nodes.

use clap::Args;
use serde_json::Value;

use crate::engine;
use crate::fleet::CommandDraft;
use crate::resource::Types;
use crate::wire::Action;
use crate::wire::command::Ensure;

use super::super::error::{CliError, Exit};
use super::super::ui::Ui;
use super::send::send;
use super::session::OperatorArgs;
use super::source::precheck_failure;
use super::target::TargetArgs;
use crate::cli::args::properties::{FleetFlags, ResourceArgs};
use crate::cli::local::inputs;

#[derive(Debug, Args)]
pub(super) struct EnsureArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(subcommand)]
    what: ResourceArgs<FleetFlags>,
}

pub(super) async fn run(args: EnsureArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let EnsureArgs { target, what } = args;
    // Checked before the connection is opened.
    let draft = draft(what, &target)?;
    let session = context.open().await?;
    let states = target.states(&draft.to, &session).await?;
    Ok(send(draft, &target, &states, &session, ui).await?.exit)
}

/// Drafts the command for one resource.
pub(super) fn draft(what: ResourceArgs<FleetFlags>, target: &TargetArgs) -> Result<CommandDraft, CliError> {
    let types = target.types.read()?;
    let kind = what.kind.clone();
    let properties = what.properties(&types)?;
    // Only the nodes know a type that is not known here.
    if !target.no_check && types.find(&kind).is_some() {
        validate(&kind, &Value::Object(properties.clone()), &types)?;
    }
    target.draft(Action::Ensure(Ensure { kind, properties }), None)
}

/// Refuses properties that every node would refuse. A node resolves the templates in them.
fn validate(kind: &str, properties: &Value, types: &Types) -> Result<(), CliError> {
    engine::precheck_one(kind, properties, types, &inputs::host()).map_err(precheck_failure)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_no_node_would_understand_is_not_sent() {
        let file = |more: Value| {
            let mut properties = json!({"name": "/tmp/x", "ensure": "present"});
            properties.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            validate("file", &properties, &Types::default())
        };
        assert!(file(json!({"owner": "root", "group": "root", "mode": "0644", "alias": "x"})).is_ok());
        let wrong = file(json!({"owner": "root", "group": "root", "mode": "rw"})).unwrap_err();
        assert!(wrong.diagnostics[0].message.contains("mode"));
        assert!(file(json!({"owner": "root"})).is_err(), "no group, no mode");
        assert!(file(json!({"owner": "{{ Facts.owner }}", "group": "root", "mode": "0644"})).is_ok());
        assert!(file(json!({"ensure": "absent"})).is_ok());
        // A template in one property hides no error in the others.
        let unknown = file(json!({"owner": "{{ Facts.owner }}", "colour": "red"})).unwrap_err();
        assert!(unknown.diagnostics[0].message.contains("colour"), "{}", unknown.message_text());
    }
}
