//! Hyper-parameters, weight upload, and the forward pass of each architecture.
