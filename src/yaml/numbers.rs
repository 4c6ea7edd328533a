//! The numbers of a text, as written.

use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::path::KeyOrIndex;

/// The numbers of a text as written, and the paths of aliases. A single walk through the text finds all numbers: a walk
/// for each number would take quadratic time.
#[derive(Debug, Clone, Default)]
pub(super) struct Numbers {
    pub(super) written: HashMap<Vec<KeyOrIndex>, String>,
    pub(super) aliases: HashSet<Vec<KeyOrIndex>>,
}

impl Numbers {
    pub(super) fn read(text: &str) -> Self {
        let mut numbers = Self::default();
        let (mut path, mut open) = (Vec::new(), Vec::new());
        let mut events = Parser::new_from_str(text);
        while let Some(Ok((event, _))) = events.next_event() {
            // A scalar in the place of a key is no value.
            match (open.last_mut(), &event) {
                (Some(due @ NextPart::Key), Event::Scalar(..) | Event::Alias(_)) => {
                    let key = if let Event::Scalar(key, ..) = &event { key.clone().into_owned() } else { String::new() };
                    path.push(KeyOrIndex::Key(key));
                    *due = NextPart::Value;
                    continue;
                }
                (Some(NextPart::Index(index)), _) => path.push(KeyOrIndex::Index(*index)),
                _ => {}
            }
            match event {
                Event::Scalar(text, ScalarStyle::Plain, ..)
                    if text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) =>
                {
                    numbers.written.insert(path.clone(), text.into_owned());
                }
                Event::Alias(_) => {
                    numbers.aliases.insert(path.clone());
                }
                Event::SequenceStart(..) => {
                    open.push(NextPart::Index(0));
                    continue;
                }
                Event::MappingStart(..) => {
                    open.push(NextPart::Key);
                    continue;
                }
                Event::SequenceEnd => {
                    // The step to an element behind the last one.
                    path.pop();
                    open.pop();
                }
                Event::MappingEnd => {
                    open.pop();
                }
                Event::Scalar(..) => {}
                _ => continue,
            }
            // A value has ended: drop its step, and expect the next value.
            match open.last_mut() {
                Some(NextPart::Index(index)) => *index += 1,
                Some(due @ NextPart::Value) => *due = NextPart::Key,
                Some(NextPart::Key) | None => {}
            }
            path.pop();
        }
        numbers
    }
}

/// The next expected part of an open list or map.
enum NextPart {
    Index(usize),
    Key,
    Value,
}
