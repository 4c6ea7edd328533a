//! A thousand hosts that ask at the same time.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Instant;

use ensign::trust::decide::join::{AdmissionContext, OpenedJoinRequest, open_answer};
use jiff::Timestamp;

use super::hosts::{Host, block_on, connect, recorded, token};
use crate::support::fleet::Fleet;
use crate::support::nats::binaries;

const HOSTS: usize = 1000;

#[test]
fn a_thousand_hosts_join_with_one_token() {
    let fleet = Fleet::created(&binaries()[0]);
    let config = std::fs::read(fleet.path("nats-server.conf")).unwrap();
    let token = token(&fleet, &["--group", "web", "--uses", "1000"]);
    let hosts: Vec<Host> = (0..HOSTS).map(|number| Host::new(&format!("web{number}"), &token)).collect();
    let operator = fleet.path("operator.toml");
    let mut admit = Command::new(env!("CARGO_BIN_EXE_ensign"))
        .args(["fleet", "--operator", operator.to_str().unwrap(), "admit", "--by-token", "--follow"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    block_on(async {
        let bus = connect(&token).await;
        for host in &hosts {
            host.ask(&fleet, &bus, &token).await;
        }
        let mut open: BTreeSet<usize> = (0..HOSTS).collect();
        let stream = fleet.subjects.stream("JOIN");
        while let Some(number) = open.first().copied() {
            assert!(admit.try_wait().unwrap().is_none(), "the operator's command ended");
            let host = &hosts[number];
            let answer = bus.last(&stream, fleet.subjects.join_answer(&host.user.public).as_str()).await.unwrap();
            let Some(answer) = answer else {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                continue;
            };
            let digest = OpenedJoinRequest::open(&host.signed(&token.seed)).unwrap().digest;
            let context =
                AdmissionContext { request: &host.request, digest: &digest, trust: &token.trust, now: Timestamp::now() };
            open_answer(&answer.payload, &context).unwrap();
            open.remove(&number);
        }
    });
    println!("{HOSTS} hosts joined in {:.1} s", begun.elapsed().as_secs_f64());
    admit.kill().unwrap();
    admit.wait().unwrap();
    assert_eq!(recorded(&fleet).len(), HOSTS);
    assert_eq!(std::fs::read(fleet.path("nats-server.conf")).unwrap(), config, "a node adds nothing to the configuration");
}
