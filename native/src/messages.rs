//! Messages of a consumer: where they stand in the body of a pull.

use cometmq_codec::layout::starts_of_records;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The position of each record of a pull's body; None when it is not a run of whole records in bytes.
#[pyfunction]
pub fn message_starts(data: &Bound<'_, PyAny>) -> Option<Vec<i64>> {
    let data = data.downcast::<PyBytes>().ok()?;
    starts_of_records(data.as_bytes())
}
