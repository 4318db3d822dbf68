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
mod call_constants;
mod headers;
mod index;
mod lite_index;
mod log_scan;
mod messages;
mod open_batch;
mod plain_acks;
mod plain_calls;
mod plain_send;
mod plain_sends;
mod property_columns;
mod received;
mod record_columns;
mod records;
mod sends_state;
#[cfg(unix)]
mod sockets;
mod transactions;

use pyo3::prelude::*;

/// The hash of the sources of this core (`build.rs`); a package that belongs to others does not load it.
const SOURCES: &str = env!("COMETMQ_CORE_SOURCES");

#[pymodule]
fn cometmq_core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("SOURCES", SOURCES)?;
    module.add_class::<account::Account>()?;
    module.add_class::<account::Key>()?;
    module.add_class::<headers::HpackDecoder>()?;
    module.add_class::<lite_index::LiteIndex>()?;
    module.add_class::<log_scan::LogScan>()?;
    module.add_class::<plain_calls::PlainCalls>()?;
    module.add_class::<received::ReceivedMessages>()?;
    module.add_class::<record_columns::RecordColumns>()?;
    module.add_class::<sends_state::PlainSends>()?;
    module.add_function(wrap_pyfunction!(batches::batch_records, module)?)?;
    module.add_function(wrap_pyfunction!(index::index_block, module)?)?;
    module.add_function(wrap_pyfunction!(messages::message_starts, module)?)?;
    module.add_function(wrap_pyfunction!(property_columns::property_maps, module)?)?;
    module.add_function(wrap_pyfunction!(property_columns::property_values, module)?)?;
    module.add_function(wrap_pyfunction!(records::records, module)?)?;
    module.add_function(wrap_pyfunction!(records::record_starts, module)?)?;
    module.add_function(wrap_pyfunction!(records::record_layout, module)?)?;
    #[cfg(unix)]
    module.add_function(wrap_pyfunction!(sockets::write_answers, module)?)?;
    Ok(())
}
