//! A loaded model and what is asked of it: logits, decisions, generation.
