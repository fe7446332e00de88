//! What a batch will take of the cache, known before it runs: the cache then grows once, and not again and again with a copy each time.

use super::shared::{Group, portion_size};
use super::{Engine, EngineError};
use crate::kernels::attention::PAGE;
use crate::model::Cache;

/// Tokens of one prompt that go into a batch of rows together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Which prompt.
    pub prompt: usize,
    /// Its next so many tokens.
    pub rows: usize,
    /// The rows before it are run first.
    pub fresh: bool,
}

/// Where one prompt stands, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    /// Tokens that are in the cache.
    pub done: usize,
    /// All of them.
    pub all: usize,
}

impl Span {
    /// Pages that it takes when it ends, beside the full ones that it shares.
    fn pages(self) -> usize {
        pages(self.all).saturating_sub(self.done / PAGE as usize)
    }
}

fn pages(tokens: usize) -> usize {
    tokens.div_ceil(PAGE as usize)
}

/// Cuts the rest of each prompt into pieces, in order and without padding: `room` rows (at least one) and `most_pages` page table entries
/// to a batch. A piece whose own pages are more stands alone.
pub(super) fn pieces(spans: &[Span], room: usize, most_pages: usize) -> Vec<Piece> {
    let room = room.max(1);
    let (mut out, mut rows, mut entries) = (Vec::new(), 0, 0);
    for (prompt, span) in spans.iter().enumerate() {
        let mut done = span.done;
        while done < span.all {
            let fresh = rows == room || (entries + pages(span.all) > most_pages && rows > 0);
            if fresh {
                (rows, entries) = (0, 0);
            }
            let piece = Piece { prompt, rows: (span.all - done).min(room - rows), fresh };
            (done, rows, entries) = (done + piece.rows, rows + piece.rows, entries + pages(span.all));
            out.push(piece);
        }
    }
    out
}

/// Pages and state slots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Need {
    pages: usize,
    states: usize,
}

/// What branches take until all of them are read: a state only where one is cut.
fn of_portion(spans: &[Span], room: usize, most_pages: usize) -> Need {
    let pieces = pieces(spans, room, most_pages);
    let cut = pieces.chunk_by(|a, b| a.prompt == b.prompt).filter(|of_prompt| of_prompt.len() > 1).count();
    Need { pages: spans.iter().map(|s| s.pages()).sum(), states: cut }
}

impl Engine {
    /// Makes room for all that a batch will take: its missing prefixes, and the branches of its largest portion. Where memory is too short
    /// for that, nothing is done: the batch then grows the cache as it goes, and takes what there is.
    ///
    /// The kept prefixes that it will start from are pinned and returned, also those that are complete; [`Engine::unpin`] must follow.
    ///
    /// # Errors
    /// GPU faults other than too little memory; nothing is pinned then.
    pub(super) async fn room_ahead(&mut self, groups: &[Group<'_>], prefixes: &[&[u32]], labels: usize) -> Result<Vec<u64>, EngineError> {
        let states = self.cache.has_states();
        let mut pinned = Vec::new();
        for tokens in prefixes {
            if let Some(i) = self.store.exact(tokens).or_else(|| self.store.best(tokens, states).map(|(i, _)| i)) {
                self.store.entries[i].pins += 1;
                pinned.push(self.store.touch(i));
            }
        }
        let covered = |tokens: &[u32]| self.store.best(tokens, states).map_or(0, |(_, n)| n);
        let common = self.common_start(prefixes);
        let mut spans: Vec<Span> = common.iter().map(|tokens| Span { done: covered(tokens), all: tokens.len() }).collect();
        let start = common.map_or(0, <[u32]>::len);
        spans.extend(self.missing(prefixes).into_iter().map(|tokens| Span { done: covered(tokens).max(start), all: tokens.len() }));
        let lens: Vec<Span> = groups.iter().flat_map(|g| g.prompts.iter().map(|p| Span { done: g.prefix, all: p.len() })).collect();
        let (room, most_pages) = (self.chunk_rows(), self.forward.max_pages());
        let portions = lens.chunks(portion_size(labels)).map(|portion| of_portion(portion, room, most_pages));
        let most = portions.fold(Need::default(), |a, b| Need { pages: a.pages.max(b.pages), states: a.states.max(b.states) });
        let need = Need { pages: most.pages + spans.iter().map(|s| s.pages()).sum::<usize>(), states: most.states + spans.len() };
        let longest = lens.iter().map(|s| s.all).max().unwrap_or(0);
        self.make_room(spans.iter().map(|s| Cache::bytes(&self.config, (s.all - s.done) as u32)).sum());
        match self.grow_to(need, longest as u32).await {
            Err(error) if !error.is_out_of_memory() => {
                pinned.iter().for_each(|id| self.unpin(*id));
                Err(error)
            }
            _ => Ok(pinned),
        }
    }

    /// The table of positions comes first: a cache that grows ahead of its need leaves nothing over.
    async fn grow_to(&mut self, need: Need, longest: u32) -> Result<(), EngineError> {
        self.forward.cover(&mut self.rec, &self.config, &self.weights, longest).await?;
        let states = if self.cache.has_states() { need.states as u32 } else { 0 };
        Ok(self.cache.provide(&mut self.rec, need.pages as u32, states).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(done: usize, all: usize) -> Span {
        Span { done, all }
    }

    #[test]
    fn pieces_fill_batches_in_order() {
        let piece = |prompt, rows, fresh| Piece { prompt, rows, fresh };
        let spans = [span(40, 50), span(40, 44), span(44, 44), span(0, 20)];
        assert_eq!(
            pieces(&spans, 12, 100),
            [piece(0, 10, false), piece(1, 2, false), piece(1, 2, true), piece(3, 10, false), piece(3, 10, true)]
        );
        // Two pages for each of the first two: three entries are too few for both.
        assert_eq!(pieces(&spans[..2], 100, 3), [piece(0, 10, false), piece(1, 4, true)]);
        assert_eq!(pieces(&spans[..2], 100, 4), [piece(0, 10, false), piece(1, 4, false)]);
        // More pages than a table has, alone.
        assert_eq!(pieces(&[span(0, 200)], 150, 1), [piece(0, 150, false), piece(0, 50, true)]);
        assert_eq!(pieces(&[span(0, 2)], 0, 1), [piece(0, 1, false), piece(0, 1, true)]);
    }

    #[test]
    fn branches_take_their_own_pages_and_a_state_where_they_are_cut() {
        // Page 0 is shared by each; the second one, partly filled, is each one's own.
        assert_eq!(of_portion(&[span(40, 64), span(40, 65)], 100, 100), Need { pages: 1 + 2, states: 0 });
        assert_eq!(of_portion(&[span(64, 65), span(0, 33)], 100, 100), Need { pages: 1 + 2, states: 0 });
        // Batches of 20: the first and the second prompt are cut, the third one is not.
        assert_eq!(of_portion(&[span(40, 64), span(40, 65), span(40, 44)], 20, 100).states, 2);
        assert_eq!(of_portion(&[], 20, 100), Need::default());
    }
}
