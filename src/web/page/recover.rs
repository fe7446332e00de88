//! After a lost device or a broken worker: load the model again and go on.

use leptos::prelude::*;

use super::Shared;
use super::models::{self, Chosen};
use crate::web::protocol::{Fault, FaultKind};

/// Is this the kind of fault that a fresh start mends?
pub fn possible(fault: &Fault) -> bool {
    matches!(fault.kind, FaultKind::Gpu | FaultKind::Crash)
}

/// Opens the GPU again and puts the same model on it, and says that it did.
pub async fn again(shared: Shared, fault: &Fault) -> Result<(), Fault> {
    let Some(source) = shared.source.get_value() else { return Err(fault.clone()) };
    models::bring_now(shared, Chosen::Source(source)).await?;
    shared.fault.set(None);
    shared.remark.set(Some(format!("{} The model was loaded again, and the run went on.", fault.message)));
    Ok(())
}
