//! The compiled core of CometMQ.
//!
//! A broker gives it the bytes of a connection. It stores the plain sends among them in one buffer of log records and
//! writes their answers, without an object for each message; half messages and ends of transactions, too. The first
//! frame that is not plain, and whatever follows it, is left to Python, which is the reference: what both do is byte for
//! byte the same.
//!
//! The crate `cometmq-codec` reads and writes bytes and knows no Python; the modules here are what Python sees.

mod account;
mod batches;
mod messages;
mod open_batch;
mod plain_sends;
mod property_columns;
mod records;
mod transactions;

use pyo3::prelude::*;

/// The version of the interface between the core and the package; another one is not loaded.
const INTERFACE: u32 = 10;

#[pymodule]
fn cometmq_core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("INTERFACE", INTERFACE)?;
    module.add_class::<account::Account>()?;
    module.add_class::<account::Key>()?;
    module.add_class::<plain_sends::PlainSends>()?;
    module.add_function(wrap_pyfunction!(batches::batch_records, module)?)?;
    module.add_function(wrap_pyfunction!(messages::message_starts, module)?)?;
    module.add_function(wrap_pyfunction!(property_columns::property_maps, module)?)?;
    module.add_function(wrap_pyfunction!(property_columns::property_values, module)?)?;
    module.add_function(wrap_pyfunction!(records::records, module)?)?;
    module.add_function(wrap_pyfunction!(records::record_starts, module)?)?;
    module.add_function(wrap_pyfunction!(records::record_layout, module)?)?;
    Ok(())
}
