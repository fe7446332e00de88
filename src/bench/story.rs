//! Text that reads like a support desk's files, from a seed: the same everywhere, no two states alike.

use super::Tokens;

const WHO: [&str; 12] = [
    "The customer",
    "A colleague in Lyon",
    "Our accountant",
    "The night shift",
    "Mrs. Okafor",
    "The carrier",
    "Support (second line)",
    "A student",
    "The landlord",
    "The bank",
    "Dr. Brandt",
    "The shop in Porto",
];
const DID: [&str; 12] = [
    "wrote that",
    "called to say that",
    "denies that",
    "confirmed by mail that",
    "asked whether it is true that",
    "noted on the form that",
    "insists that",
    "could not tell us whether",
    "told the driver that",
    "found out later that",
    "promised that",
    "forgot that",
];
const WHAT: [&str; 16] = [
    "the invoice {n} was paid twice",
    "parcel {n} was left at the wrong door",
    "the contract ends after {n} days",
    "the refund of {n}.50 EUR never arrived",
    "the password was reset {n} times",
    "the meter showed {n} on Monday",
    "order #{n} contains \"fragile\" parts",
    "the appointment was moved to room {n}",
    "the printer on floor {n} is broken again",
    "{n} people had signed the list",
    "the export failed with error {n}",
    "ticket {n} was closed without an answer",
    "the delivery needs {n} hours (not minutes)",
    "the plan \u{201c}Pro {n}\u{201d} was cancelled in March",
    "nobody had read page {n} of the terms",
    "the battery lasts {n} % longer",
];
const THEN: [&str; 10] = [
    "Nothing was done about it.",
    "A copy is attached; see below.",
    "This contradicts the first note.",
    "They want an answer by Friday.",
    "It is the third time this year!",
    "Please don't share this outside the team.",
    "Receipt: yes. Photo: no.",
    "The amount is disputed.",
    "No further contact since then.",
    "Legal says it's fine.",
];

/// Text from a seed.
pub struct Story(Tokens);

impl Story {
    /// Equal seeds tell equal stories.
    pub fn new(seed: u64) -> Story {
        Story(Tokens::new(seed))
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.0.take(1, from.len() as u32)[0] as usize]
    }

    /// The next sentence or two.
    pub fn sentence(&mut self) -> String {
        let number = self.0.take(1, 9000)[0] + 2;
        let what = self.pick(&WHAT).replace("{n}", &number.to_string());
        let (who, did, then) = (self.pick(&WHO), self.pick(&DID), self.pick(&THEN));
        if self.0.take(1, 3)[0] == 0 { format!("{who} {did} {what}. {then} ") } else { format!("{who} {did} {what}. ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stories_are_the_same_everywhere_and_differ_by_seed() {
        let tell = |seed| {
            let mut story = Story::new(seed);
            (0..40).map(|_| story.sentence()).collect::<String>()
        };
        assert_eq!(tell(1), tell(1));
        assert_ne!(tell(1), tell(2));
        assert!(tell(3).split(' ').count() > 300);
    }
}
