//! The native command line.
