//! Account: who signs the sends of a connection, and the topics it may publish to.

use cometmq_codec::fields::STAMP;
use cometmq_codec::hmac;
use cometmq_codec::request::SendRequest;
use cometmq_codec::signature::{are_from, Texts, TOGETHER};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use std::collections::HashMap;

/// Decisions of one account that are remembered; then all are asked again.
const MOST_DECISIONS: usize = 10_000;

/// A secret key, ready to check signatures; nothing gives it back.
#[pyclass(module = "cometmq_core", frozen)]
pub struct Key(hmac::Key);

#[pymethods]
impl Key {
    #[new]
    fn new(secret: &str) -> Self {
        Key(hmac::Key::new(secret.as_bytes()))
    }
}

/// An account as it is at this moment: with a change of accounts or policies another one takes its place.
#[pyclass(module = "cometmq_core")]
pub struct Account {
    access_key: Option<String>,
    key: Option<Py<Key>>,
    /// None once the garbage collector has taken it.
    may_publish: Option<Py<PyAny>>,
    /// None once the garbage collector has taken it.
    accepts_stamp: Option<Py<PyAny>>,
    requires_stamps: bool,
    decisions: HashMap<Box<str>, bool>,
    /// The topic of the last send, and the decision of it.
    last: (String, bool),
    texts: Texts,
}

#[pymethods]
impl Account {
    /// :param access_key: what its requests name, None for nothing.
    /// :param key: what they are signed with, None if they need not be.
    /// :param may_publish: called once with each topic.
    /// :param accepts_stamp: called with the stamp of each signed send that has one.
    /// :param requires_stamps: called for those without a stamp, too.
    #[new]
    fn new(
        access_key: Option<String>,
        key: Option<Py<Key>>,
        may_publish: Py<PyAny>,
        accepts_stamp: Py<PyAny>,
        requires_stamps: bool,
    ) -> Self {
        Account {
            access_key,
            key,
            may_publish: Some(may_publish),
            accepts_stamp: Some(accepts_stamp),
            requires_stamps,
            decisions: HashMap::new(),
            last: Default::default(),
            texts: Texts::default(),
        }
    }

    /// For the garbage collector: a session and its account know each other.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.may_publish)?;
        visit.call(&self.accepts_stamp)
    }

    fn __clear__(&mut self) {
        self.may_publish = None;
        self.accepts_stamp = None;
    }
}

impl Account {
    /// For each send, with its body, true when it is this account's.
    pub fn are_mine<'a>(
        &mut self,
        sends: impl Iterator<Item = (&'a SendRequest<'a>, &'a [u8])> + Clone,
    ) -> [bool; TOGETHER] {
        let key = self.key.as_ref().map(|key| &key.get().0);
        are_from(self.access_key.as_deref(), key, &mut self.texts, sends)
    }

    /// True when the account may send to a topic.
    pub fn may_send(&mut self, py: Python<'_>, topic: &str) -> PyResult<bool> {
        if self.last.0 != topic {
            let decision = self.decide(py, topic)?;
            self.last.0.clear();
            self.last.0.push_str(topic);
            self.last.1 = decision;
        }
        Ok(self.last.1)
    }

    fn decide(&mut self, py: Python<'_>, topic: &str) -> PyResult<bool> {
        if let Some(decision) = self.decisions.get(topic) {
            return Ok(*decision);
        }
        let Some(may_publish) = self.may_publish.as_ref() else {
            return Ok(false);
        };
        let decision: bool = may_publish.call1(py, (topic,))?.extract(py)?;
        if self.decisions.len() >= MOST_DECISIONS {
            self.decisions.clear();
        }
        self.decisions.insert(topic.into(), decision);
        Ok(decision)
    }

    /// True when a send of this account has not come before; asked once, just before the send is put.
    pub fn is_fresh(&self, py: Python<'_>, request: &SendRequest<'_>) -> PyResult<bool> {
        let stamp = request.fields.get(STAMP);
        if self.key.is_none() || (stamp.is_none() && !self.requires_stamps) {
            return Ok(true);
        }
        let Some(accepts_stamp) = self.accepts_stamp.as_ref() else {
            return Ok(false);
        };
        accepts_stamp.call1(py, (stamp,))?.extract(py)
    }
}
