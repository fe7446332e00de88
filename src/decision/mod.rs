//! The decision domain: rows, prompt wording and payload, answer slots, readout maths and result rows.
