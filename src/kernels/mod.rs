//! One file a kernel: parameters, dispatch, and its test against a reference.
