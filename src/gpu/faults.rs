//! Faults on order, for tests of what comes after them. Outside tests there are none, and asking costs nothing.

/// Where a fault can strike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// A buffer is made.
    Buffer,
    /// Data goes up; a fault loses it.
    Write,
    /// Commands are submitted; a fault loses them, and is heard of later.
    Submit,
    /// Results are read back.
    Read,
}

#[cfg(test)]
pub mod order {
    use super::Stage;
    use crate::gpu::{Gpu, GpuError};
    use std::sync::Mutex;

    /// A fault to come.
    #[derive(Debug, Clone)]
    pub struct Order {
        pub stage: Stage,
        /// Strikes when so many events of the stage have passed.
        pub after: usize,
        pub error: GpuError,
    }

    /// What has passed of each stage, and what is to come.
    #[derive(Debug, Default)]
    pub struct Faults {
        order: Mutex<Option<Order>>,
        passed: Mutex<Vec<(Stage, usize)>>,
    }

    impl Gpu {
        /// Orders a fault, or takes an order back, and counts from 0 again.
        pub(crate) fn order(&self, order: Option<Order>) {
            *self.faults().order.lock().unwrap() = order;
            self.faults().passed.lock().unwrap().clear();
        }

        /// Events of a stage since the last order.
        pub(crate) fn passed(&self, stage: Stage) -> usize {
            self.faults().passed.lock().unwrap().iter().find(|(s, _)| *s == stage).map_or(0, |(_, n)| *n)
        }

        /// The order has not been carried out yet.
        pub(crate) fn ordered(&self) -> bool {
            self.faults().order.lock().unwrap().is_some()
        }

        pub(in crate::gpu) fn strike(&self, stage: Stage) -> Option<GpuError> {
            let mut passed = self.faults().passed.lock().unwrap();
            let at = passed.iter().position(|(s, _)| *s == stage).unwrap_or_else(|| {
                passed.push((stage, 0));
                passed.len() - 1
            });
            let n = passed[at].1;
            passed[at].1 += 1;
            let mut order = self.faults().order.lock().unwrap();
            let now = order.as_ref().is_some_and(|o| o.stage == stage && o.after == n);
            let error = if now { order.take().map(|o| o.error) } else { None };
            if let Some(GpuError::Lost(_)) = &error {
                self.note(error.clone()?);
            }
            error
        }
    }
}

#[cfg(not(test))]
impl super::Gpu {
    #[inline(always)]
    pub(super) fn strike(&self, _: Stage) -> Option<super::GpuError> {
        None
    }
}
