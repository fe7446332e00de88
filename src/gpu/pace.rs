//! How much work a submit may hold. Nothing else runs on the GPU meanwhile: a browser's watchdog resets it after a while, and the page must
//! be drawn. The speed is measured from submits as they finish, and the slowest of late counts.

use super::{Gpu, now_seconds};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// A submit should not take longer than this: in a browser so that pages stay smooth, natively so that no driver loses patience.
const SUBMIT_SECONDS: f64 = if cfg!(target_arch = "wasm32") { 0.04 } else { 0.25 };
/// Work of a submit before anything was measured: 40 ms of a slow GPU.
const FIRST: u64 = 20_000_000_000;
/// Callbacks that come together were waiting for their turn: what they tell of is one measurement.
const TOGETHER: f64 = 0.0005;
/// Shorter measurements are mostly waiting: they count as if they had taken so long. So a pace that was measured too low, by submits that waited
/// for a compiler, rises again, also where it has made all submits short.
const SHORTEST: f64 = 0.002;
/// A group of submits with less than this share of what they might have held says little about the GPU: mostly it waited to be told. Only
/// where it took long all the same was the GPU slow.
const TELLING: f64 = 0.5;
/// Measurements that are remembered.
const MEMORY: usize = 8;

/// The pace of a recorder. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Pace(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Work a second, of late.
    rates: VecDeque<f64>,
    /// The submits that finished together last: since when they ran, the work of all and of the largest, and when they were done.
    since: f64,
    work: u64,
    largest: u64,
    done: f64,
    /// What a submit might have held when they began.
    allowed: u64,
    /// Seconds of the longest submit so far.
    longest: f64,
    /// Submits that nobody has reported done.
    under_way: usize,
}

impl Pace {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Work that the next submit may hold.
    pub fn budget(&self) -> u64 {
        self.state().budget()
    }

    /// Seconds that the longest submit took, as far as can be told.
    pub fn longest(&self) -> f64 {
        let state = self.state();
        state.longest.max(state.group().map_or(0.0, |(_, longest)| longest))
    }

    /// Forgets the longest one.
    pub fn forget_longest(&self) {
        let mut state = self.state();
        (state.longest, state.work) = (0.0, 0);
    }

    /// Is everything done that was watched?
    pub fn idle(&self) -> bool {
        self.state().under_way == 0
    }

    /// Watches the submit that was just sent.
    pub fn watch(&self, gpu: &Gpu, work: u64) {
        self.state().under_way += 1;
        let (pace, began) = (self.clone(), now_seconds());
        gpu.queue().on_submitted_work_done(move || {
            let mut state = pace.state();
            state.under_way -= 1;
            state.note(work, began, now_seconds());
        });
    }
}

impl State {
    fn budget(&self) -> u64 {
        let now = self.group().filter(|_| self.telling()).map(|(rate, _)| rate);
        let slowest = self.rates.iter().copied().chain(now).fold(f64::INFINITY, f64::min);
        if slowest.is_finite() { ((slowest * SUBMIT_SECONDS) as u64).max(1) } else { FIRST }
    }

    /// Does the last group tell how fast the GPU is? What waited for a callback and held little does not: a pace taken from it would make all
    /// submits tiny.
    fn telling(&self) -> bool {
        self.work as f64 >= self.allowed as f64 * TELLING || self.done - self.since > SUBMIT_SECONDS * TELLING
    }

    /// Work a second of the submits that finished last, and seconds of the largest of them.
    fn group(&self) -> Option<(f64, f64)> {
        (self.work > 0).then(|| {
            let rate = self.work as f64 / (self.done - self.since).max(SHORTEST);
            (rate, self.largest as f64 / rate)
        })
    }

    fn note(&mut self, work: u64, began: f64, now: f64) {
        if now - self.done > TOGETHER {
            if let Some((rate, longest)) = self.group() {
                if self.telling() {
                    self.rates.push_back(rate);
                    if self.rates.len() > MEMORY {
                        self.rates.pop_front();
                    }
                }
                self.longest = self.longest.max(longest);
            }
            // The GPU began with it when it was sent, or when the one before was done.
            (self.since, self.work, self.largest) = (began.max(self.done), 0, 0);
            self.allowed = self.budget();
        }
        self.work += work;
        self.largest = self.largest.max(work);
        self.done = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_of_late_counts() {
        let mut state = State::default();
        assert_eq!(state.budget(), FIRST);
        // 2 * 10^10 in 0.2 s, then twice as slow, one after the other.
        state.note(20_000_000_000, 1.0, 1.2);
        assert!((state.budget() as f64 / (1e11 * SUBMIT_SECONDS) - 1.0).abs() < 1e-6);
        state.note(20_000_000_000, 1.001, 1.6);
        assert!((state.budget() as f64 / (5e10 * SUBMIT_SECONDS) - 1.0).abs() < 1e-6);
        assert!((state.longest - 0.2).abs() < 1e-9);
        // The slow one is forgotten after a while.
        for i in 0..10 {
            let at = 2.0 + f64::from(i);
            state.note(20_000_000_000, at, at + 0.2);
        }
        assert!((state.budget() as f64 / (1e11 * SUBMIT_SECONDS) - 1.0).abs() < 1e-6);
        assert!((state.longest - 0.4).abs() < 1e-9);
    }

    #[test]
    fn callbacks_that_come_together_are_one_measurement() {
        let mut state = State::default();
        // Three submits of 0.1 to 0.2 s, heard of only when all were done.
        for (work, late) in [(20_000_000_000, 0.0), (10_000_000_000, 1e-5), (10_000_000_000, 2e-5)] {
            state.note(work, 1.0, 1.4 + late);
        }
        assert!((state.budget() as f64 / (1e11 * SUBMIT_SECONDS) - 1.0).abs() < 1e-3);
        assert!((state.group().unwrap().1 - 0.2).abs() < 1e-4);
        // What takes no time was at least so fast.
        state.note(1_000_000, 5.0, 5.0001);
        assert!((state.group().unwrap().0 / (1_000_000.0 / SHORTEST) - 1.0).abs() < 1e-6 && state.rates.len() == 1);
    }

    #[test]
    fn a_small_submit_that_waited_for_its_callback_is_no_measurement() {
        let mut state = State::default();
        state.note(20_000_000_000, 1.0, 1.2);
        let budget = state.budget();
        // A readback of a few rows, heard of after 3 ms; then one that took longer than any submit should.
        for i in 0..20 {
            let at = 2.0 + f64::from(i);
            state.note(1_000_000, at, at + 0.003);
            assert_eq!(state.budget(), budget, "{i}");
        }
        state.note(1_000_000, 30.0, 30.0 + SUBMIT_SECONDS);
        assert!(state.budget() <= 1_000_000);
    }

    /// A GPU of 10^13 a second whose first submits waited 0.3 s for a compiler: from then on submits are as small as the pace says, and still
    /// it finds the way back.
    #[test]
    fn a_pace_that_was_measured_too_low_rises_again() {
        let mut state = State::default();
        let mut now = 1.0;
        for _ in 0..MEMORY {
            now += 0.3;
            state.note(1_000_000_000, now - 0.3, now);
        }
        let low = state.budget();
        let mut submits = 0;
        while state.budget() < (1e13 * SUBMIT_SECONDS * 0.9) as u64 {
            let work = state.budget();
            let began = now;
            // A submit takes its work's time, and a little for being sent.
            now += work as f64 / 1e13 + 0.0006;
            state.note(work, began, now);
            submits += 1;
            assert!(submits < 100, "{submits} submits after a pace of {low} the budget is {}", state.budget());
        }
    }
}
