//! Plain records of a log that is read again (see `cometmq.store.log.plain_records`).

use cometmq_codec::scan::{Scan, Wanted};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

/// The queues that are followed through the log.
#[pyclass(module = "cometmq_core")]
pub struct LogScan(Scan);

#[pymethods]
impl LogScan {
    /// :param units_from: the log offset from which on records get units; ``keys_from`` the same for index entries.
    /// :param checks_body: the CRC of bodies is compared.
    #[new]
    fn new(units_from: i64, keys_from: i64, checks_body: bool) -> Self {
        LogScan(Scan::new(Wanted {
            units_from,
            keys_from,
            checks_body,
        }))
    }

    /// Know a topic; follow its queue from the offset ``next`` on, or with None no longer.
    fn follow(&mut self, topic: &str, queue_id: i32, next: Option<i64>) {
        self.0.follow(topic, queue_id, next);
    }

    /// Follow no queue.
    fn forget(&mut self) {
        self.0.forget();
    }

    /// Read the plain records at the beginning of ``data``, which stands at log offset ``base``. Return
    ///
    /// ``(bytes, size of the last record, last store timestamp or 0, [(topic, queue id, first queue offset, units)],
    /// index hashes as native int32, their log offsets and store timestamps as native int64, records with keys, whether
    /// the next record is not plain)``
    fn run<'py>(
        &mut self,
        py: Python<'py>,
        data: PyBuffer<u8>,
        base: i64,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let run = self.0.run(&data.to_vec(py)?, base);
        let queues = PyList::empty(py);
        for queue in self.0.touched() {
            let units = PyBytes::new(py, &queue.units);
            queues.append((&*queue.topic, queue.queue_id, queue.first, units))?;
        }
        let hashes: Vec<u8> = run.hashes.iter().flat_map(|at| at.to_ne_bytes()).collect();
        let [offsets, timestamps] = [&run.offsets, &run.timestamps].map(|numbers| -> Vec<u8> {
            numbers.iter().flat_map(|each| each.to_ne_bytes()).collect()
        });
        (
            run.bytes,
            run.last_size,
            run.timestamp,
            queues,
            PyBytes::new(py, &hashes),
            PyBytes::new(py, &offsets),
            PyBytes::new(py, &timestamps),
            run.indexed,
            run.is_stopped,
        )
            .into_pyobject(py)
    }
}
