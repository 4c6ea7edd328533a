//! Finds the place of a value: a walk along a path through the events of a text.

use saphyr_parser::{Event, Parser, Span, StrInput};

use super::path::KeyOrIndex;

/// A value in the text.
pub(super) struct FoundNode {
    pub(super) key: Option<Span>,
    pub(super) value: Span,
    pub(super) scalar: Option<String>,
    /// The anchor of an alias here.
    pub(super) alias: Option<usize>,
}

pub(super) enum SearchResult {
    Found(FoundNode),
    /// An alias: its anchor, and the number of steps of the path that are left.
    Alias(usize, usize),
}

/// A walk through the events of a text along a path.
pub(super) struct Search<'a> {
    pub(super) events: Parser<'a, StrInput<'a>>,
    pub(super) key: Option<Span>,
}

impl<'a> Search<'a> {
    fn next(&mut self) -> Option<(Event<'a>, Span)> {
        self.events.next_event()?.ok()
    }

    /// Starts at the node with `anchor`, else at the root.
    pub(super) fn search_from(&mut self, anchor: Option<usize>, path: &[KeyOrIndex]) -> Option<SearchResult> {
        loop {
            let (event, span) = self.next()?;
            let found = match (anchor, &event) {
                (None, Event::StreamStart | Event::DocumentStart(_)) => false,
                (None, _) => true,
                (Some(wanted), Event::Scalar(_, _, id, _) | Event::SequenceStart(id, _) | Event::MappingStart(id, _)) => {
                    *id == wanted
                }
                (Some(_), _) => false,
            };
            if found {
                return self.node(event, span, path);
            }
        }
    }

    fn node(&mut self, event: Event<'a>, span: Span, path: &[KeyOrIndex]) -> Option<SearchResult> {
        let Some((step, rest)) = path.split_first() else {
            let (scalar, alias) = match event {
                Event::Scalar(text, ..) => (Some(text.into_owned()), None),
                Event::Alias(id) => (None, Some(id)),
                _ => (None, None),
            };
            return Some(SearchResult::Found(FoundNode { key: self.key, value: span, scalar, alias }));
        };
        match (event, step) {
            (Event::Alias(id), _) => Some(SearchResult::Alias(id, path.len())),
            (Event::SequenceStart(..), KeyOrIndex::Index(index)) => {
                for _ in 0..*index {
                    let (event, _) = self.next()?;
                    if event == Event::SequenceEnd {
                        return None;
                    }
                    self.skip(&event)?;
                }
                self.key = None;
                let (event, span) = self.next()?;
                if event == Event::SequenceEnd { None } else { self.node(event, span, rest) }
            }
            (Event::MappingStart(..), KeyOrIndex::Key(wanted)) => self.mapping(wanted, rest),
            _ => None,
        }
    }

    fn mapping(&mut self, wanted: &str, rest: &[KeyOrIndex]) -> Option<SearchResult> {
        let mut merge = None;
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                // The key is not written here, so a merge brought the key in.
                return merge
                    .map(|span| SearchResult::Found(FoundNode { key: Some(span), value: span, scalar: None, alias: None }));
            }
            let key = if let Event::Scalar(text, ..) = &event { Some(text.clone()) } else { None };
            if key.is_none() {
                self.skip(&event)?;
            }
            let (event, value) = self.next()?;
            match key.as_deref() {
                Some(key) if key == wanted => {
                    self.key = Some(span);
                    return self.node(event, value, rest);
                }
                Some("<<") => merge = Some(span),
                _ => {}
            }
            self.skip(&event)?;
        }
    }

    /// Skips the node that `event` begins.
    fn skip(&mut self, event: &Event<'_>) -> Option<()> {
        let mut depth = usize::from(matches!(event, Event::SequenceStart(..) | Event::MappingStart(..)));
        while depth > 0 {
            match self.next()?.0 {
                Event::SequenceStart(..) | Event::MappingStart(..) => depth += 1,
                Event::SequenceEnd | Event::MappingEnd => depth -= 1,
                _ => {}
            }
        }
        Some(())
    }
}
