//! Properties of many records as the buffers of Arrow arrays.

use crate::records::bytes_of;
use cometmq_codec::property_columns::{maps, values, Maps, Texts, Values};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Offsets as native int32, and the bytes of the texts.
pub type Strings<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);
/// Strings, and bits that mark those that are not null.
pub type Nullable<'py> = (Strings<'py>, Bound<'py, PyBytes>);
/// Offsets of the maps, names and values.
pub type Entries<'py> = (Bound<'py, PyBytes>, Strings<'py>, Strings<'py>);

/// The value of one property of each record; None when a text is not plain.
///
/// :param data: the texts, one behind the other; ``offsets`` has the end of each, with the begin of the first before.
#[pyfunction]
pub fn property_values<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    offsets: PyBuffer<i32>,
    name: &str,
) -> PyResult<Option<Nullable<'py>>> {
    let found = values(&data.to_vec(py)?, &offsets.to_vec(py)?, name);
    found.map(|values| nullable(py, &values)).transpose()
}

/// The properties of each record; None when a text is not plain.
#[pyfunction]
pub fn property_maps<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    offsets: PyBuffer<i32>,
) -> PyResult<Option<Entries<'py>>> {
    let found = maps(&data.to_vec(py)?, &offsets.to_vec(py)?);
    found.map(|maps| entries(py, &maps)).transpose()
}

pub fn entries<'py>(py: Python<'py>, maps: &Maps) -> PyResult<Entries<'py>> {
    Ok((
        bytes_of(py, &maps.offsets)?,
        strings(py, &maps.names)?,
        strings(py, &maps.values)?,
    ))
}

pub fn nullable<'py>(py: Python<'py>, values: &Values) -> PyResult<Nullable<'py>> {
    Ok((strings(py, &values.texts)?, PyBytes::new(py, &values.has)))
}

pub fn strings<'py>(py: Python<'py>, texts: &Texts) -> PyResult<Strings<'py>> {
    Ok((
        bytes_of(py, &texts.offsets)?,
        PyBytes::new(py, &texts.bytes),
    ))
}
