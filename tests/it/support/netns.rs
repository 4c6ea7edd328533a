//! Hosts with networks of their own: namespaces of the kernel, each behind a pair of virtual interfaces that can be cut.
//!
//! A value ends its namespace. A guardian ends the namespace of a killed process: it waits for the end of the process's pipe.

use std::io::Write;
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

use super::skip::{no_namespaces, skip};

/// A host of its own.
pub struct Netns {
    name: String,
    /// The interface at our end.
    outer: String,
    /// Our address, as the host sees it.
    pub address: Ipv4Addr,
    guardian: Child,
}

fn run(words: &str) -> Result<(), String> {
    let mut parts = words.split(' ');
    let output = Command::new(parts.next().unwrap()).args(parts).output().map_err(|error| format!("{words}: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(format!("{words}: {}", String::from_utf8_lossy(&output.stderr).trim())) }
}

impl Netns {
    /// Makes host `number` of this process; skips the test where this user can't.
    pub fn new(number: u8) -> Option<Self> {
        let pid = std::process::id();
        let (name, outer) = (format!("ensign-{pid}-{number}"), format!("ens{:x}v{number}", pid & 0x00ff_ffff));
        // A private network of RFC 2544, for tests of networks; by process, so that two processes differ.
        let address = Ipv4Addr::new(198, 18, u8::try_from(pid % 250).unwrap(), number * 4 + 1);
        let inner = Ipv4Addr::new(198, 18, u8::try_from(pid % 250).unwrap(), number * 4 + 2);
        let guardian = Command::new("setsid")
            .args(["sh", "-c", &format!("read _; ip netns del {name} 2>/dev/null; ip link del {outer} 2>/dev/null")])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let made = Self { name: name.clone(), outer: outer.clone(), address, guardian };
        let steps = [
            format!("ip netns add {name}"),
            format!("ip link add {outer} type veth peer name eth0 netns {name}"),
            format!("ip addr add {address}/30 dev {outer}"),
            format!("ip link set {outer} up"),
            format!("ip -n {name} addr add {inner}/30 dev eth0"),
            format!("ip -n {name} link set eth0 up"),
            format!("ip -n {name} link set lo up"),
        ];
        match steps.iter().try_for_each(|step| run(step)) {
            Ok(()) => Some(made),
            Err(why) => {
                skip(no_namespaces(), &why);
                None
            }
        }
    }

    /// The command that starts a program on this host.
    pub fn starter(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.name]
    }

    /// Cuts the network in both directions.
    pub fn cut(&self) {
        run(&format!("ip link set {} down", self.outer)).unwrap();
    }

    /// Restores the network in both directions.
    pub fn heal(&self) {
        run(&format!("ip link set {} up", self.outer)).unwrap();
    }

    /// Drops incoming packets until [`Netns::hear`]; outgoing packets arrive.
    pub fn deafen(&self) {
        let name = &self.name;
        for step in ["add table inet cut", "add chain inet cut in { type filter hook input priority 0 ; policy drop ; }"] {
            run(&format!("ip netns exec {name} nft {step}")).unwrap();
        }
    }

    /// Ends [`Netns::deafen`].
    pub fn undeafen(&self) {
        run(&format!("ip netns exec {} nft delete table inet cut", self.name)).unwrap();
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // The line ends the guardian; so would the end of our pipe.
        let told = self.guardian.stdin.take().is_some_and(|mut pipe| pipe.write_all(b"\n").is_ok());
        if told {
            let _ended = self.guardian.wait();
        }
    }
}
