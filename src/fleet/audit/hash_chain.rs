//! The hash chain of one node: links, gaps, forks. Pure functions over receipts whose signatures were verified.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use uuid::Uuid;

use crate::diag::count_noun;
use crate::wire::report::{DroppedMessages, OpenLinks};

use super::finding::FindingKind;

/// Messages that a node sends to one stream at the same time.
///
/// Near the oldest kept message of a stream, the order of the stream differs from the order of the chain. The order differs
/// between streams too: a stream may be blocked for days while the others go on.
const MAX_IN_FLIGHT: u64 = 16;
/// Most gaps that a message lists.
const MAX_LISTED_GAPS: usize = 8;

/// A receipt in the chain.
#[derive(Debug, Clone)]
pub(super) struct ChainLink {
    pub(super) seq: u64,
    pub(super) prev: Option<String>,
    pub(super) digest: String,
    pub(super) boot: Uuid,
    /// Time of the signature, by the clock of the node.
    pub(super) at: Timestamp,
    /// Time at which the server stored the message.
    pub(super) time: Timestamp,
}

/// The chain as the latest state of the node reports it.
#[derive(Debug, Clone, Copy)]
pub(super) struct StateClaim {
    /// Number of links.
    pub(super) chain: u64,
    /// Number of messages in the outbox of the node.
    pub(super) waiting: u64,
    /// Start time of the agent that published the state.
    pub(super) started: Timestamp,
    /// The links that the streams can't have yet, where the node reports them.
    pub(super) open: Option<OpenLinks>,
}

/// A finding of the chain with its description.
pub(super) type ChainFinding = (FindingKind, String);

/// The receipts and reports about the chain of a node.
#[derive(Debug, Default)]
pub(super) struct NodeChain {
    pub(super) links: Vec<ChainLink>,
    pub(super) dropped: Vec<DroppedMessages>,
    pub(super) claim: Option<StateClaim>,
    pub(super) duplicates: u64,
}

impl NodeChain {
    /// Checks the chain. Before `horizon`, messages may be missing for their age.
    pub(super) fn check(&mut self, horizon: Option<Timestamp>) -> Vec<ChainFinding> {
        self.remove_duplicates();
        let mut found = self.find_forks();
        found.extend(self.find_broken_links());
        found.extend(self.find_gaps(horizon));
        found
    }

    /// Removes repeated messages: the server may have stored a message twice.
    fn remove_duplicates(&mut self) {
        let mut seen = BTreeSet::new();
        let before = self.links.len();
        self.links.retain(|link| seen.insert(link.digest.clone()));
        self.duplicates += (before - self.links.len()) as u64;
        self.links.sort_by(|one, other| (one.seq, one.at, &one.digest).cmp(&(other.seq, other.at, &other.digest)));
    }

    /// Finds different messages at the same position.
    fn find_forks(&self) -> Vec<ChainFinding> {
        let mut pairs: BTreeMap<(Uuid, Uuid), (u64, u64)> = BTreeMap::new();
        let mut found = Vec::new();
        for both in self.links.windows(2) {
            let [one, other] = both else { continue };
            if one.seq != other.seq {
                continue;
            }
            if one.boot == other.boot {
                let what = format!("two different messages are #{} of one agent start: forged with the key of the node", one.seq);
                found.push((FindingKind::Fork, what));
                continue;
            }
            // In the order in which they were signed.
            let pair = pairs.entry((one.boot, other.boot)).or_insert((one.seq, one.seq));
            pair.1 = one.seq;
        }
        for ((old, new), (first, last)) in pairs {
            let last_of_old = self.links_of_boot(old).map(|link| link.at).max();
            let first_of_new = self.links_of_boot(new).map(|link| link.at).min();
            let what = format_range(first, last);
            if last_of_old <= first_of_new {
                let what = format!("the node forgot {what} in a power cut; the server has them and the messages in their place");
                found.push((FindingKind::Lost, what));
            } else {
                let what = format!("two agents signed with one key at the same time ({what}): the state directory was copied");
                found.push((FindingKind::Fork, what));
            }
        }
        found
    }

    fn links_of_boot(&self, boot: Uuid) -> impl Iterator<Item = &ChainLink> {
        self.links.iter().filter(move |link| link.boot == boot)
    }

    /// Finds receipts that do not name the receipt before them.
    fn find_broken_links(&self) -> Vec<ChainFinding> {
        let by_digest: HashMap<&str, &ChainLink> = self.links.iter().map(|link| (link.digest.as_str(), link)).collect();
        let by_seq: BTreeSet<(u64, Uuid)> = self.links.iter().map(|link| (link.seq, link.boot)).collect();
        let mut found = Vec::new();
        for link in &self.links {
            let Some(prev) = &link.prev else { continue };
            let wrong = match by_digest.get(prev.as_str()) {
                Some(before) => before.seq + 1 != link.seq,
                // The receipt that it names is missing, though the receipt that it must follow is here.
                None => by_seq.contains(&(link.seq - 1, link.boot)),
            };
            if wrong {
                found.push((FindingKind::Link, format!("#{} does not follow the message before it", link.seq)));
            }
        }
        found
    }

    /// Finds positions without a message.
    fn find_gaps(&self, horizon: Option<Timestamp>) -> Vec<ChainFinding> {
        let said = self.claim.map_or(0, |claim| match claim.open {
            Some(_) => claim.chain,
            None => claim.chain.saturating_sub(claim.waiting),
        });
        let Some(low) = self.first_required_seq(horizon) else {
            return self.find_total_loss(said, horizon).into_iter().collect();
        };
        let high = self.links.last().map_or(0, |link| link.seq).max(said);
        let there: BTreeSet<u64> = self.links.iter().map(|link| link.seq).collect();
        let mut missing: BTreeSet<u64> = (low..=high).filter(|seq| !there.contains(seq)).collect();
        let mut found = Vec::new();
        for dropped in &self.dropped {
            let inside: Vec<u64> = missing.range(dropped.first..=dropped.last).copied().collect();
            let count = usize::try_from(dropped.events + dropped.results).unwrap_or(usize::MAX);
            if inside.is_empty() {
                continue;
            }
            let told: Vec<u64> = inside.into_iter().take(count).collect();
            let what = format!(
                "the node reports that it dropped {}: {}",
                count_noun(dropped.events + dropped.results, "message"),
                format_ranges(&told)
            );
            found.push((FindingKind::Dropped, what));
            missing.retain(|seq| !told.contains(seq));
        }
        if let Some(claim) = self.claim {
            found.extend(take_unsent(&claim, &mut missing));
        }
        if !missing.is_empty() {
            let count = missing.len();
            let messages = if count == 1 { "message is" } else { "messages are" };
            let missing: Vec<u64> = missing.into_iter().collect();
            found.push((FindingKind::Gap, format!("{count} {messages} missing: {}", format_ranges(&missing))));
        }
        found
    }

    /// Finds a node without any message since the start of its agent. An agent publishes a message when it starts.
    fn find_total_loss(&self, said: u64, horizon: Option<Timestamp>) -> Option<ChainFinding> {
        let claim = self.claim.filter(|claim| said > 0 && horizon.is_none_or(|horizon| claim.started >= horizon))?;
        let waits = claim.open.is_some_and(|open| open.first == 1);
        let what = format!(
            "all messages since the agent start at {:.0} are missing: the node reports that it sent {said}",
            claim.started
        );
        (!waits).then_some((FindingKind::Gap, what))
    }

    /// Returns the first position that must have a message; `None` when no position must.
    ///
    /// The chain of a node begins with 1. A message that was signed before the horizon may have been stored before it.
    fn first_required_seq(&self, horizon: Option<Timestamp>) -> Option<u64> {
        let Some(horizon) = horizon else { return self.links.first().map(|_| 1) };
        let is_after = |link: &&ChainLink| link.time >= horizon && link.at >= horizon;
        let after = self.links.iter().filter(is_after).map(|link| link.seq).min()?;
        let before = self.links.iter().filter(|link| !is_after(link)).map(|link| link.seq + 1).max();
        Some(before.map_or(after, |before| before.max(after)) + MAX_IN_FLIGHT)
    }
}

/// Removes the positions that the node had not sent at its last report, and returns a note about them.
///
/// These are the open positions that the node reports, at most as many as it counts, and all later positions.
fn take_unsent(claim: &StateClaim, missing: &mut BTreeSet<u64>) -> Vec<ChainFinding> {
    let later = missing.split_off(&(claim.chain + 1));
    let first = match claim.open {
        Some(open) => open.first,
        None if claim.waiting > 0 => claim.chain.saturating_sub(claim.waiting).saturating_sub(MAX_IN_FLIGHT),
        None => claim.chain + 1,
    };
    let open = missing.split_off(&first);
    let most = claim.open.map_or(u64::MAX, |open| open.count);
    let mut found = Vec::new();
    if open.len() as u64 > most {
        let among = format_ranges(&open.iter().copied().collect::<Vec<_>>());
        let most = count_noun(most, "waiting message");
        let what = format!("the streams lack {among}, and the node reports only {most}: more are missing");
        found.push((FindingKind::Gap, what));
    }
    let waiting: Vec<u64> = open.into_iter().chain(later).collect();
    if !waiting.is_empty() {
        found.push((FindingKind::Waiting, format!("the node may not have sent {} yet", format_ranges(&waiting))));
    }
    found
}

/// Formats a range: `#3`, `#3 to #7`
fn format_range(first: u64, last: u64) -> String {
    if first == last { format!("#{first}") } else { format!("#{first} to #{last}") }
}

/// Formats positions as ranges: `#3, #5 to #9`
fn format_ranges(places: &[u64]) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for place in places {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *place => *last = *place,
            _ => ranges.push((*place, *place)),
        }
    }
    let more = ranges.len().saturating_sub(MAX_LISTED_GAPS);
    let mut listed: Vec<String> =
        ranges.into_iter().take(MAX_LISTED_GAPS).map(|(first, last)| format_range(first, last)).collect();
    listed.extend((more > 0).then(|| format!("and {more} more gaps")));
    listed.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    /// Builds link `seq` after `prev`, of an agent start, signed and stored at a second.
    fn link(seq: u64, name: &str, prev: Option<&str>, boot: u128, at: i64) -> ChainLink {
        let prev = prev.map(str::to_owned);
        ChainLink { seq, prev, digest: name.to_owned(), boot: Uuid::from_u128(boot), at: time(at), time: time(at) }
    }

    /// Builds `a1 <- a2 <- ...`, of the first start.
    fn straight(count: u64) -> Vec<ChainLink> {
        let name = |seq: u64| format!("a{seq}");
        (1..=count)
            .map(|seq| link(seq, &name(seq), (seq > 1).then(|| name(seq - 1)).as_deref(), 1, i64::try_from(seq).unwrap()))
            .collect()
    }

    fn check(links: Vec<ChainLink>, change: impl FnOnce(&mut NodeChain), horizon: Option<i64>) -> Vec<String> {
        let mut chain = NodeChain { links, ..NodeChain::default() };
        change(&mut chain);
        chain.check(horizon.map(time)).into_iter().map(|(kind, what)| format!("{kind:?}: {what}")).collect()
    }

    fn without(mut links: Vec<ChainLink>, gone: &[u64]) -> Vec<ChainLink> {
        links.retain(|link| !gone.contains(&link.seq));
        links
    }

    #[test]
    fn a_whole_chain_is_clean() {
        assert!(check(straight(9), |_| {}, None).is_empty());
        let mut shuffled = straight(9);
        shuffled.reverse();
        shuffled.push(shuffled[3].clone());
        assert!(check(shuffled, |_| {}, None).is_empty(), "order and repetition are the server's business");
        assert!(check(vec![], |_| {}, None).is_empty());
    }

    #[test]
    fn what_is_missing_is_a_gap_unless_the_node_says_why() {
        let gap = "Gap: 3 messages are missing: #1, #4 to #5";
        assert_eq!(check(without(straight(9), &[1, 4, 5]), |_| {}, None), [gap]);
        let told = DroppedMessages { events: 2, results: 0, first: 3, last: 6 };
        let found = check(without(straight(9), &[1, 4, 5]), |chain| chain.dropped = vec![told.clone()], None);
        assert_eq!(found, ["Dropped: the node reports that it dropped 2 messages: #4 to #5", "Gap: 1 message is missing: #1"]);
        // Not more than the node reports.
        let found = check(without(straight(9), &[3, 4, 5, 6]), |chain| chain.dropped = vec![told], None);
        assert_eq!(found[1], "Gap: 2 messages are missing: #5 to #6");
    }

    #[test]
    fn the_end_can_be_missing_too() {
        let claim = |chain: u64, waiting: u64| {
            move |all: &mut NodeChain| all.claim = Some(StateClaim { chain, waiting, open: None, started: time(5) })
        };
        assert_eq!(check(straight(30), claim(32, 0), None), ["Gap: 2 messages are missing: #31 to #32"]);
        assert!(check(straight(30), claim(32, 2), None).is_empty());
        assert_eq!(check(without(straight(30), &[25]), claim(32, 2), None), ["Waiting: the node may not have sent #25 yet"]);
        assert_eq!(check(without(straight(30), &[3]), claim(32, 2), None), ["Gap: 1 message is missing: #3"]);
        // All messages: the message of the agent start would be there.
        let all = "Gap: all messages since the agent start at 2027-01-15T08:00:05Z are missing: the node reports that it sent 9";
        assert_eq!(check(vec![], claim(9, 0), None), [all]);
        assert_eq!(check(vec![], claim(9, 0), Some(4)), [all]);
        assert!(check(vec![], claim(9, 0), Some(6)).is_empty(), "the server may have removed it for its age");
        assert!(check(vec![], claim(9, 9), None).is_empty(), "nothing was sent yet");
    }

    /// The stream of events is blocked since #3, the stream of results goes on.
    #[test]
    fn messages_that_wait_for_their_stream_are_no_gap() {
        let claim = |chain: u64, open: Option<(u64, u64)>| {
            let open = open.map(|(first, count)| OpenLinks { first, count });
            move |all: &mut NodeChain| {
                all.claim = Some(StateClaim { chain, waiting: open.map_or(0, |open| open.count), open, started: time(5) });
            }
        };
        let stuck = || without(straight(40), &[3, 4, 6, 38]);
        let waiting = ["Waiting: the node may not have sent #3 to #4, #6, #38 yet"];
        assert_eq!(check(stuck(), claim(40, Some((3, 4))), None), waiting);
        // A stored message without an acknowledgement counts as open too.
        assert_eq!(check(stuck(), claim(40, Some((3, 5))), None), waiting);
        let more = check(stuck(), claim(40, Some((3, 3))), None);
        assert_eq!(
            more[0],
            "Gap: the streams lack #3 to #4, #6, #38, and the node reports only 3 waiting messages: more are missing"
        );
        assert_eq!(check(stuck(), claim(40, Some((4, 3))), None)[1], "Gap: 1 message is missing: #3");
        // The node has sent all messages that it reports. Later messages may not have been sent.
        assert_eq!(
            check(stuck(), claim(37, None), None),
            ["Waiting: the node may not have sent #38 yet", "Gap: 3 messages are missing: #3 to #4, #6"]
        );
        assert_eq!(check(straight(30), claim(32, Some((31, 1))), None)[0].split(':').next(), Some("Gap"));
    }

    #[test]
    fn late_messages_after_removed_messages_leave_no_gap() {
        // #1 to #9 arrived when their stream had removed #10 to #30, of another stream, for their age.
        let mut links = without(straight(60), &(10..=30).collect::<Vec<_>>());
        links.iter_mut().filter(|link| link.seq < 10).for_each(|link| link.time = time(50));
        assert!(check(links, |_| {}, Some(31)).is_empty());
    }

    #[test]
    fn before_the_horizon_nothing_is_missing() {
        assert!(check(without(straight(60), &[1, 5, 12]), |_| {}, Some(10)).is_empty());
        assert_eq!(check(without(straight(60), &[1, 40]), |_| {}, Some(10)), ["Gap: 1 message is missing: #40"]);
    }

    #[test]
    fn forks_are_told_apart() {
        let after = |at: i64| {
            let mut links = straight(5);
            links.extend([
                link(4, "b4", Some("a3"), 2, at),
                link(5, "b5", Some("b4"), 2, at + 1),
                link(6, "b6", Some("b5"), 2, at + 2),
            ]);
            links
        };
        let cut = "Lost: the node forgot #4 to #5 in a power cut; the server has them and the messages in their place";
        assert_eq!(check(after(9), |_| {}, None), [cut]);
        let cloned = check(after(4), |_| {}, None);
        assert!(cloned.len() == 1 && cloned[0].contains("the state directory was copied"), "{cloned:?}");
        let mut forged = straight(5);
        forged.push(link(4, "x4", Some("a3"), 1, 4));
        assert!(check(forged, |_| {}, None)[0].starts_with("Fork: two different messages are #4 of one agent start"));
    }

    #[test]
    fn a_link_to_something_else_is_found() {
        let mut links = straight(5);
        links[3].prev = Some("elsewhere".into());
        assert_eq!(check(links, |_| {}, None), ["Link: #4 does not follow the message before it"]);
        let mut links = straight(5);
        links[3].prev = Some("a2".into());
        assert_eq!(check(links, |_| {}, None), ["Link: #4 does not follow the message before it"]);
    }
}
