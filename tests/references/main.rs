//! The references that decide: the `semif` program against `tests/fixtures/oracle`, on whatever Vulkan adapter the
//! loader offers (`./test` pins Mesa's software driver, so that the numbers are the same everywhere).
//!
//! The model files come from the folder `SEMIF_TEST_MODELS`, or from the cache that `./test` fills. A missing file
//! fails the test that needs it: a reference that was not compared has not been met.

mod compare;
mod fast;
mod generation;
mod program;
mod reference;
mod synthetic;
mod weights;
