//! The native command line; in a browser build there is nothing to do.

fn main() {}
