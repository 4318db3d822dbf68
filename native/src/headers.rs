//! HpackDecoder: the headers of the calls of one HTTP/2 connection.

use cometmq_codec::hpack::Table;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyType};

#[pyclass(module = "cometmq_core")]
pub struct HpackDecoder {
    pub(crate) table: Table,
    pub(crate) max_bytes: usize,
    error: Py<PyType>,
    share: Py<PyAny>,
}

#[pymethods]
impl HpackDecoder {
    /// :param max_bytes: the most bytes of a header list; a longer one is cut off.
    /// :param error: raised with a text for a malformed block.
    /// :param share: gives the shared object for a text of a table.
    #[new]
    fn new(max_bytes: usize, error: Py<PyType>, share: Py<PyAny>) -> Self {
        HpackDecoder {
            table: Table::default(),
            max_bytes,
            error,
            share,
        }
    }

    /// Keep what the header blocks of taken calls have changed.
    fn commit(&mut self) {
        self.table.commit();
    }

    /// Undo what the header blocks of taken calls have changed, since Python handles the calls.
    fn undo(&mut self) {
        self.table.undo();
    }

    /// Return the headers of a block, with the last value for each name, and the size of its list.
    fn decode<'py>(
        &mut self,
        py: Python<'py>,
        block: &[u8],
    ) -> PyResult<(Bound<'py, PyDict>, usize)> {
        let headers = PyDict::new(py);
        let mut failure = None;
        let share = self.share.bind(py);
        let read = self
            .table
            .read(block, self.max_bytes, |name, value, is_kept| {
                let share = is_kept.then_some(share);
                let added = text(py, name, share)
                    .and_then(|name| headers.set_item(name, text(py, value, share)?));
                if let Err(error) = added {
                    failure = Some(error);
                }
            });
        self.table.commit();
        if let Some(error) = failure {
            return Err(error);
        }
        match read {
            Ok(size) => Ok((headers, size)),
            Err(words) => {
                let error = self.error.bind(py).call1((words,))?;
                Err(PyErr::from_value(error))
            }
        }
    }
}

/// Longer texts do not fit into a table.
const MAX_SHARED_BYTES: usize = 4_096;

/// Latin-1 as text; one that is kept is the same object each time, since calls that stay open share it.
///
/// It is not interned: Python 3.12 and later never free a text that native code has interned.
fn text<'py>(
    py: Python<'py>,
    bytes: &[u8],
    share: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let made = match std::str::from_utf8(bytes) {
        Ok(plain) if plain.is_ascii() => PyString::new(py, plain),
        _ => PyString::new(
            py,
            &bytes.iter().map(|byte| *byte as char).collect::<String>(),
        ),
    };
    match share {
        Some(share) if bytes.len() <= MAX_SHARED_BYTES => share.call1((made,)),
        _ => Ok(made.into_any()),
    }
}
