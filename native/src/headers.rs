//! HpackDecoder: the headers of the calls of one HTTP/2 connection.

use cometmq_codec::hpack::Table;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyType};

#[pyclass(module = "cometmq_core")]
pub struct HpackDecoder {
    pub(crate) table: Table,
    pub(crate) max_bytes: usize,
    error: Py<PyType>,
}

#[pymethods]
impl HpackDecoder {
    /// :param max_bytes: the most bytes of a header list; a longer one is cut off.
    /// :param error: raised with a text for a malformed block.
    #[new]
    fn new(max_bytes: usize, error: Py<PyType>) -> Self {
        HpackDecoder {
            table: Table::default(),
            max_bytes,
            error,
        }
    }

    /// Return the headers of a block, with the last value for each name, and the size of its list.
    fn decode<'py>(
        &mut self,
        py: Python<'py>,
        block: &[u8],
    ) -> PyResult<(Bound<'py, PyDict>, usize)> {
        let headers = PyDict::new(py);
        let mut failure = None;
        let read = self
            .table
            .read(block, self.max_bytes, |name, value, is_kept| {
                if let Err(error) =
                    headers.set_item(text(py, name, is_kept), text(py, value, is_kept))
                {
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

/// Latin-1 as text; one that is kept is the same object each time, since calls that stay open share it.
fn text<'py>(py: Python<'py>, bytes: &[u8], is_kept: bool) -> Bound<'py, PyString> {
    let make = |text: &str| {
        if is_kept {
            PyString::intern(py, text)
        } else {
            PyString::new(py, text)
        }
    };
    match std::str::from_utf8(bytes) {
        Ok(plain) if plain.is_ascii() => make(plain),
        _ => make(&bytes.iter().map(|byte| *byte as char).collect::<String>()),
    }
}
