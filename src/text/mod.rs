//! Tokenizer and chat template, both from the model file.
