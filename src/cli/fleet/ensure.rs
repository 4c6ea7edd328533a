//! `ensign fleet ensure`: one resource on many nodes.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Value, json};

use crate::engine::{self, Inputs};
use crate::fleet::Order;
use crate::wire::Action;
use crate::wire::command::Ensure;

use super::super::error::{Exit, Failure};
use super::super::local;
use super::super::properties::{Described, OnNodes};
use super::super::ui::Ui;
use super::report::send;
use super::session::Context;
use super::target::TargetArgs;

#[derive(Debug, Args)]
pub(super) struct EnsureArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(subcommand)]
    what: Described<OnNodes>,
}

pub(super) async fn run(args: EnsureArgs, context: &Context, ui: &mut Ui) -> Result<Exit, Failure> {
    let EnsureArgs { target, what } = args;
    // Before anything is asked of anybody.
    let order = order(what, &target)?;
    let session = context.open().await?;
    Ok(send(order, &target, &session, ui).await?.exit)
}

/// The order for one resource.
pub(super) fn order(what: Described<OnNodes>, target: &TargetArgs) -> Result<Order, Failure> {
    validate(what.kind, &Value::Object(what.properties.clone()))?;
    target.order(Action::Ensure(Ensure { kind: what.kind.to_owned(), properties: what.properties }), None)
}

/// What every node would refuse is refused here; what only a node can resolve is left to it.
fn validate(kind: &str, properties: &Value) -> Result<(), Failure> {
    if engine::holds_template(properties) {
        return Ok(());
    }
    let nothing = Inputs::new(|| json!({}), BTreeMap::new(), None);
    match engine::plan_one(kind, properties, &nothing, &local::host()) {
        Ok(_) => Ok(()),
        Err(diagnostics) => Err(Failure { exit: Exit::Usage, diagnostics }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_node_would_understand_is_not_sent() {
        let file = |more: Value| {
            let mut properties = json!({"name": "/tmp/x", "ensure": "present"});
            properties.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            validate("file", &properties)
        };
        assert!(file(json!({"owner": "root", "group": "root", "mode": "0644", "alias": "x"})).is_ok());
        let wrong = file(json!({"owner": "root", "group": "root", "mode": "rw"})).unwrap_err();
        assert!(wrong.diagnostics[0].message.contains("mode"));
        assert!(file(json!({"owner": "root"})).is_err(), "no group, no mode");
        assert!(file(json!({"owner": "{{ Facts.owner }}", "group": "root", "mode": "0644"})).is_ok());
        assert!(file(json!({"ensure": "absent"})).is_ok());
    }
}
