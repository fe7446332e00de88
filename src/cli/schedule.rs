//! Which rows are read together. Pure: positions and token lists in, units of work out.

use std::collections::HashMap;

use clap::ValueEnum;

use crate::engine::shared_prefix;

use super::batch::{Planned, Prompted};

/// A shorter common prefix is not worth a branch.
pub const LEAST_PREFIX: usize = 16;
/// Most prompts of one reading.
const MOST_PROMPTS: usize = 64;

/// How rows with an equal state are read. The logits are the same bits either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Every row by itself
    Direct,
    /// A state is read once and kept, its rows follow one at a time
    Serial,
    /// A state is read once, the rest of its rows' prompts together
    Shared,
    /// Shared where at least two prompts have the same state; rows without company share chunks, not states
    #[default]
    Auto,
}

/// How a unit is read; prefixes in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Direct,
    Serial { prefix: usize },
    Shared { prefix: usize },
}

impl How {
    /// Leading tokens that are kept.
    pub fn prefix(self) -> Option<usize> {
        match self {
            How::Direct => None,
            How::Serial { prefix } | How::Shared { prefix } => Some(prefix),
        }
    }

    /// For result rows.
    pub fn name(self) -> &'static str {
        match self {
            How::Direct => "direct",
            How::Serial { .. } => "serial",
            How::Shared { .. } => "shared",
        }
    }
}

/// Rows of one state that are read in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub rows: Vec<usize>,
    pub how: How,
}

/// Parts that are read, and then written, together: states that are shared, and rows that are alone with theirs. A refused row is a unit of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    pub parts: Vec<Part>,
    /// Prompts, and tokens to be read, prefixes included.
    prompts: usize,
    work: usize,
    /// Others may be read with it.
    open: bool,
}

impl Unit {
    fn alone(row: usize) -> Unit {
        Unit { parts: vec![Part { rows: vec![row], how: How::Direct }], prompts: 1, work: 0, open: false }
    }

    /// The rows, in the order in which they are read.
    pub fn rows(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().flat_map(|part| part.rows.iter().copied())
    }

    /// Takes a part of another state up, where both are small.
    fn join(&mut self, other: &Unit, portion: usize) -> bool {
        let fits = self.prompts + other.prompts <= MOST_PROMPTS && self.work + other.work <= portion;
        if !(fits && self.open && other.open) {
            return false;
        }
        self.parts.extend(other.parts.iter().cloned());
        self.prompts += other.prompts;
        self.work += other.work;
        true
    }
}

/// How rows of one state are read.
pub fn how(rows: &[&Prompted], mode: Mode) -> How {
    if mode == Mode::Direct {
        return How::Direct;
    }
    let prompts: Vec<&[u32]> = rows.iter().flat_map(|row| &row.prompts).map(|prompt| &prompt.tokens[..]).collect();
    if prompts.len() < 2 {
        return How::Direct;
    }
    match (shared_prefix(&prompts), mode) {
        (prefix, _) if prefix < LEAST_PREFIX => How::Direct,
        (prefix, Mode::Serial) => How::Serial { prefix },
        (prefix, _) => How::Shared { prefix },
    }
}

/// The work for all rows that are not `done`. A state's rows come when its first row's turn has come, so that lines wait as little as
/// possible for the ones before them, in portions of about `portion` suffix tokens; several small states make one portion, and with `pack` so
/// do rows that share theirs with no other.
pub fn schedule(planned: &[Planned], done: &dyn Fn(usize) -> bool, mode: Mode, portion: usize, pack: bool) -> Vec<Unit> {
    let pack = pack && matches!(mode, Mode::Shared | Mode::Auto);
    schedule_by(planned, done, portion, pack, &mut |rows| how(rows, mode))
}

/// The same, with a state's rows looked at by `how`.
fn schedule_by(
    planned: &[Planned],
    done: &dyn Fn(usize) -> bool,
    portion: usize,
    pack: bool,
    how: &mut dyn FnMut(&[&Prompted]) -> How,
) -> Vec<Unit> {
    let mut groups: HashMap<&str, Vec<usize>> = HashMap::new();
    for (i, row) in planned.iter().enumerate() {
        if let Planned::Ready(row) = row
            && !done(i)
        {
            groups.entry(&row.state_key).or_default().push(i);
        }
    }
    let mut units: Vec<Unit> = Vec::new();
    // The last unit that others may join; rows read by themselves may have come after it.
    let mut open: Option<usize> = None;
    let mut add = |units: &mut Vec<Unit>, unit: Unit| {
        if !open.is_some_and(|open| units[open].join(&unit, portion)) {
            if unit.open {
                open = Some(units.len());
            }
            units.push(unit);
        }
    };
    let lone = |i: usize, row: &Prompted| {
        let work = row.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        Unit { prompts: row.prompts.len(), work, open: pack, ..Unit::alone(i) }
    };
    for (i, row) in planned.iter().enumerate() {
        if done(i) {
            continue;
        }
        let Planned::Ready(row) = row else {
            units.push(Unit::alone(i));
            continue;
        };
        // A group is looked at once. Read together, all its rows come now; read one by one, it is forgotten, and each waits for its turn.
        let Some(group) = groups.get_mut(&row.state_key[..]) else {
            add(&mut units, lone(i, row));
            continue;
        };
        let group = std::mem::take(group);
        if group.is_empty() {
            continue;
        }
        let ready = |i: &usize| if let Planned::Ready(row) = &planned[*i] { Some(row) } else { None };
        let rows: Vec<&Prompted> = group.iter().filter_map(ready).collect();
        match how(&rows) {
            How::Direct => {
                groups.remove(&row.state_key[..]);
                add(&mut units, lone(i, row));
            }
            how => {
                for unit in portions(&group, &rows, how, portion) {
                    add(&mut units, unit);
                }
            }
        }
    }
    units
}

fn portions(group: &[usize], rows: &[&Prompted], how: How, portion: usize) -> Vec<Unit> {
    let prefix = how.prefix().unwrap_or(0);
    let mut units: Vec<Unit> = Vec::new();
    for (index, row) in group.iter().zip(rows) {
        let own: usize = row.prompts.iter().map(|prompt| prompt.tokens.len() - prefix).sum();
        let prompts = row.prompts.len();
        match units.last_mut() {
            Some(unit)
                if matches!(how, How::Shared { .. }) && unit.prompts + prompts <= MOST_PROMPTS && unit.work - prefix + own <= portion =>
            {
                unit.parts[0].rows.push(*index);
                unit.prompts += prompts;
                unit.work += own;
            }
            _ => {
                let (parts, open) = (vec![Part { rows: vec![*index], how }], matches!(how, How::Shared { .. }));
                units.push(Unit { parts, prompts, work: prefix + own, open });
            }
        }
    }
    units
}

#[cfg(test)]
mod tests {
    use super::super::batch::Prompt;
    use super::*;
    use crate::decision::result::RefusedRow;

    /// A row of state `state` with `prompts` prompts: `prefix` tokens of the state, then `own` of its own.
    fn row(state: u32, prefix: usize, own: usize, prompts: usize) -> Planned {
        let prompt = |i: usize| {
            let start = std::iter::repeat_n(state, prefix);
            let tokens = start.chain([1000 + i as u32]).chain(std::iter::repeat_n(7, own - 1)).collect();
            Prompt { order: vec![0, 1], tokens, sha256: String::new() }
        };
        Planned::Ready(Prompted {
            id: String::new(),
            place: String::new(),
            option_ids: Vec::new(),
            state_key: state.to_string(),
            prompts: (0..prompts).map(prompt).collect(),
            slots: Vec::new(),
            prepare_seconds: 0.0,
            system_folded: false,
        })
    }

    fn refused() -> Planned {
        Planned::Refused(RefusedRow { id: None, error: String::new() })
    }

    fn plan(rows: &[Planned], mode: Mode, portion: usize) -> Vec<(Vec<usize>, How)> {
        let parts = schedule(rows, &|_| false, mode, portion, false).into_iter().flat_map(|unit| unit.parts);
        parts.map(|part| (part.rows, part.how)).collect()
    }

    #[test]
    fn rows_of_a_state_are_found_wherever_they_stand() {
        // The rows' own parts are equal, so the common prefix is all but one token, as the engine needs it.
        let rows = [row(1, 20, 5, 1), row(2, 20, 5, 1), refused(), row(1, 20, 5, 1), row(3, 20, 5, 1), row(2, 20, 5, 1)];
        let shared = How::Shared { prefix: 24 };
        let wanted = [(vec![0, 3], shared), (vec![1, 5], shared), (vec![2], How::Direct), (vec![4], How::Direct)];
        assert_eq!(plan(&rows, Mode::Auto, 999), wanted);
        assert_eq!(plan(&rows, Mode::Shared, 999), wanted);
        let serial = How::Serial { prefix: 24 };
        let one_by_one: Vec<_> = [0, 3, 1, 5].map(|i| (vec![i], serial)).into_iter().chain(wanted[2..].to_vec()).collect();
        assert_eq!(plan(&rows, Mode::Serial, 999), one_by_one);
        assert_eq!(plan(&rows, Mode::Direct, 999), (0..6).map(|i| (vec![i], How::Direct)).collect::<Vec<_>>());
        // What is done already is left out, and no longer makes a group.
        let rest = schedule(&rows, &|i| i == 0 || i == 2, Mode::Auto, 999, false);
        assert_eq!(rest.iter().map(|unit| unit.rows().collect()).collect::<Vec<Vec<_>>>(), [vec![1, 5], vec![3], vec![4]]);
    }

    #[test]
    fn each_row_is_looked_at_once() {
        let rows: Vec<Planned> = (0..20_000).map(|_| row(1, 2, 3, 1)).collect();
        for mode in [Mode::Direct, Mode::Auto] {
            let mut looked_at = 0;
            let units = schedule_by(&rows, &|_| false, 99, false, &mut |rows| {
                looked_at += rows.len();
                how(rows, mode)
            });
            assert_eq!((units.len(), looked_at), (rows.len(), rows.len()));
        }
    }

    #[test]
    fn short_prefixes_are_read_directly() {
        let rows = [row(1, 10, 5, 1), row(1, 10, 7, 1)];
        assert_eq!(plan(&rows, Mode::Auto, 999), [(vec![0], How::Direct), (vec![1], How::Direct)]);
        let rows = [row(1, 15, 5, 2), row(1, 15, 7, 2)];
        assert_eq!(plan(&rows, Mode::Serial, 999), [(vec![0], How::Direct), (vec![1], How::Direct)]);
        let rows = [row(1, 16, 5, 2), row(1, 16, 7, 2)];
        assert_eq!(plan(&rows, Mode::Auto, 999), [(vec![0, 1], How::Shared { prefix: 16 })]);
    }

    #[test]
    fn orderings_of_one_row_share_its_state() {
        assert_eq!(plan(&[row(1, 16, 5, 3)], Mode::Auto, 999), [(vec![0], How::Shared { prefix: 16 })]);
        assert_eq!(plan(&[row(1, 16, 5, 3)], Mode::Direct, 999), [(vec![0], How::Direct)]);
    }

    #[test]
    fn portions_are_bounded() {
        let rows: Vec<Planned> = (0..7).map(|_| row(1, 20, 10, 2)).collect();
        let sizes = |portion| plan(&rows, Mode::Auto, portion).iter().map(|(rows, _)| rows.len()).collect::<Vec<_>>();
        assert_eq!(sizes(60), [3, 3, 1]);
        assert_eq!(sizes(59), [2, 2, 2, 1]);
        assert_eq!(sizes(1), [1; 7], "a row is never cut");
        let many: Vec<Planned> = (0..70).map(|_| row(1, 20, 2, 2)).collect();
        assert_eq!(plan(&many, Mode::Auto, 9999).iter().map(|(rows, _)| rows.len()).collect::<Vec<_>>(), [32, 32, 6]);
    }

    #[test]
    fn small_states_are_read_together() {
        // Eight states with two rows each, 20 + 2 x 5 tokens a state, and a row that is alone.
        let mut rows: Vec<Planned> = (0..16).map(|i| row(i / 2, 16, 5, 2)).collect();
        rows.insert(4, row(99, 20, 5, 1));
        let units = |mode, portion| {
            let units = schedule(&rows, &|_| false, mode, portion, false);
            units.iter().map(|unit| unit.parts.iter().map(|part| part.rows.len()).collect()).collect::<Vec<Vec<usize>>>()
        };
        // 36 tokens a state: its prefix of 16 and four suffixes of 5.
        assert_eq!(units(Mode::Shared, 36 * 3), [vec![2, 2, 2], vec![1], vec![2, 2, 2], vec![2, 2]]);
        assert_eq!(units(Mode::Auto, 36 * 2 - 1), [vec![2], vec![2], vec![1], vec![2], vec![2], vec![2], vec![2], vec![2], vec![2]]);
        assert!(units(Mode::Serial, 9999).iter().all(|parts| parts.len() == 1), "one by one");
        assert!(units(Mode::Direct, 9999).iter().all(|parts| *parts == [1]));
        // Never more prompts than a reading takes.
        let many: Vec<Planned> = (0..40).map(|i| row(i, 16, 2, 4)).collect();
        let counts = schedule(&many, &|_| false, Mode::Auto, 99_999, false);
        assert_eq!(counts.iter().map(|unit| unit.parts.len()).collect::<Vec<_>>(), [16, 16, 8]);
    }

    #[test]
    fn rows_that_are_alone_are_packed() {
        // Rows of 25 tokens, each with a state of its own, a refused one, and two that share a state of 20.
        let mut rows: Vec<Planned> = (0..7).map(|i| row(i, 20, 5, 1)).collect();
        rows.insert(2, refused());
        rows.extend([row(50, 20, 5, 1), row(50, 20, 5, 1)]);
        let units = |mode, portion, pack| {
            let units = schedule(&rows, &|_| false, mode, portion, pack);
            units.iter().map(|unit| unit.rows().collect()).collect::<Vec<Vec<usize>>>()
        };
        // The shared state reads 24 and 1 for each of its rows.
        assert_eq!(units(Mode::Auto, 75, true), [vec![0, 1, 3], vec![2], vec![4, 5, 6], vec![7, 8, 9]]);
        let how: Vec<How> = schedule(&rows, &|_| false, Mode::Auto, 75, true)[3].parts.iter().map(|part| part.how).collect();
        assert_eq!(how, [How::Direct, How::Shared { prefix: 24 }]);
        for one_by_one in [units(Mode::Auto, 75, false), units(Mode::Direct, 75, true), units(Mode::Serial, 75, true)] {
            assert!(one_by_one[..8].iter().all(|rows| rows.len() == 1), "{one_by_one:?}");
        }
    }
}
