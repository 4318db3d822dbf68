//! LiteIndex: the lite topics of one parent topic, as `cometmq.broker.lite.index.LiteIndex`, which documents the methods.

use cometmq_codec::lite_index::{LiteIndex as Index, Removed};
use cometmq_codec::lite_names::LiteNames;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

const NO_NAME: i32 = -1;

#[pyclass(module = "cometmq_core")]
pub struct LiteIndex {
    #[pyo3(get)]
    parent: String,
    /// Number of changes that hold numbers of lite topics over several slices.
    #[pyo3(get, set)]
    keeps: i64,
    pub(crate) index: Index,
}

type Bytes<'py> = Bound<'py, PyBytes>;

#[pymethods]
impl LiteIndex {
    #[new]
    fn new(parent: String) -> Self {
        LiteIndex {
            parent,
            keeps: 0,
            index: Index::default(),
        }
    }

    #[getter]
    fn base(&self) -> i64 {
        self.index.base
    }

    #[getter]
    fn end(&self) -> i64 {
        self.index.end()
    }

    #[getter]
    fn unsaved(&self) -> i64 {
        self.index.unsaved
    }

    #[setter]
    fn set_unsaved(&mut self, unsaved: i64) {
        self.index.unsaved = unsaved;
    }

    #[getter]
    fn unstored(&self) -> usize {
        self.index.unstored()
    }

    #[getter]
    fn count(&self) -> usize {
        self.index.names.count
    }

    #[getter]
    fn size(&self) -> usize {
        self.index.names.size()
    }

    fn find(&self, name: &Bound<'_, PyString>) -> i32 {
        let text = name.to_str().unwrap_or(""); // half of a character is in no name
        self.find_bytes(text.as_bytes())
    }

    fn find_bytes(&self, name: &[u8]) -> i32 {
        self.index.names.find(name).unwrap_or(NO_NAME)
    }

    fn name(&self, number: i32) -> PyResult<&str> {
        Ok(std::str::from_utf8(self.index.names.name(number))?)
    }

    fn raw_name<'py>(&self, py: Python<'py>, number: i32) -> Bytes<'py> {
        PyBytes::new(py, self.index.names.name(number))
    }

    #[pyo3(signature = (name, begin=0))]
    fn add(&mut self, name: &str, begin: i64) -> PyResult<i32> {
        let added = self.index.add(name.as_bytes(), begin);
        added.ok_or_else(|| PyValueError::new_err("the name is empty or too long"))
    }

    fn remove(&mut self, number: i32) -> PyResult<Removed> {
        let removed = self.index.remove(number);
        removed.ok_or_else(|| PyIndexError::new_err("no lite topic has this number"))
    }

    fn put_back(&mut self, removed: Removed) -> PyResult<i32> {
        let number = self.index.put_back(&removed);
        number.ok_or_else(|| PyValueError::new_err("the name is empty or too long"))
    }

    fn extent(&self, number: i32) -> (i64, i64) {
        self.index.extent(number)
    }

    fn next_offset(&self, number: i32) -> i64 {
        self.index.extent(number).1
    }

    fn restart(&mut self, number: i32, begin: i64) {
        self.index.restart(number, begin);
    }

    fn append(&mut self, number: i32, log_offset: i64) {
        self.index.append(number, log_offset);
    }

    fn take_back(&mut self) {
        self.index.take_back();
    }

    fn stored(&mut self) {
        self.index.stored();
    }

    fn log_offset(&self, entry: i64) -> PyResult<i64> {
        let found = self.index.log_offset(entry);
        found.ok_or_else(|| PyIndexError::new_err("no entry has this number"))
    }

    fn owner(&self, entry: i64) -> i32 {
        self.index.owner(entry)
    }

    fn owners(&self, first: i64, end: i64) -> Vec<i32> {
        self.index.owners(first, end).to_vec()
    }

    fn following(&self, entry: i64) -> i64 {
        self.index.following(entry)
    }

    fn first(&self, number: i32) -> i64 {
        self.index.first(number)
    }

    fn last(&self, number: i32) -> i64 {
        self.index.last(number)
    }

    #[pyo3(signature = (number, offset, near=-1, near_offset=0))]
    fn entry(&self, number: i32, offset: i64, near: i64, near_offset: i64) -> i64 {
        self.index.entry(number, offset, near, near_offset)
    }

    fn offset_at(&self, number: i32, entry: i64) -> i64 {
        self.index.offset_at(number, entry)
    }

    fn drop_before(&mut self, log_offset: i64) -> bool {
        self.index.drop_before(log_offset)
    }

    fn idle<'py>(&self, py: Python<'py>, end: i64) -> Bytes<'py> {
        i32_bytes(py, &self.index.idle(end))
    }

    fn dump_entries<'py>(&self, py: Python<'py>, first: i64, end: i64) -> (Bytes<'py>, Bytes<'py>) {
        let (logs, owners) = self.index.entries(first, end);
        (i64_bytes(py, logs), i32_bytes(py, owners))
    }

    fn dump_names<'py>(
        &self,
        py: Python<'py>,
        first: usize,
        end: usize,
    ) -> (Bytes<'py>, Bytes<'py>, Bytes<'py>) {
        let (names, lengths, starts) = self.index.names.dump(first, end);
        let starts: Vec<u8> = starts.iter().flat_map(|one| one.to_ne_bytes()).collect();
        (
            PyBytes::new(py, names),
            PyBytes::new(py, lengths),
            PyBytes::new(py, &starts),
        )
    }

    fn dump_begins<'py>(&self, py: Python<'py>, first: usize, end: usize) -> Bytes<'py> {
        i64_bytes(py, self.index.begins(first, end))
    }

    fn load(
        &mut self,
        names: (Vec<u8>, Vec<u8>, Vec<u8>),
        begins: &[u8],
        logs: &[u8],
        owners: &[u8],
    ) -> PyResult<()> {
        let starts: Vec<u32> = words(&names.2).map(u32::from_ne_bytes).collect();
        let owners = words(owners).map(i32::from_ne_bytes).collect();
        let loaded = LiteNames::load(&names.0, &names.1, &starts)
            .and_then(|names| Index::load(names, longs(begins), longs(logs), owners));
        self.index =
            loaded.ok_or_else(|| PyValueError::new_err("the parts do not belong together"))?;
        Ok(())
    }
}

fn i64_bytes<'py>(py: Python<'py>, values: &[i64]) -> Bytes<'py> {
    let bytes: Vec<u8> = values.iter().flat_map(|one| one.to_ne_bytes()).collect();
    PyBytes::new(py, &bytes)
}

fn i32_bytes<'py>(py: Python<'py>, values: &[i32]) -> Bytes<'py> {
    let bytes: Vec<u8> = values.iter().flat_map(|one| one.to_ne_bytes()).collect();
    PyBytes::new(py, &bytes)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> + '_ {
    bytes
        .chunks_exact(4)
        .map(|word| std::array::from_fn(|at| word[at]))
}

fn longs(bytes: &[u8]) -> Vec<i64> {
    let longs = bytes.chunks_exact(8);
    longs
        .map(|long| i64::from_ne_bytes(std::array::from_fn(|at| long[at])))
        .collect()
}
