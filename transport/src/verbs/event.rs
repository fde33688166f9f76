//! Asynchronous events of devices: port state changes and queue pair failures.

use verbs_sys::EventType;

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Type of the event.
    pub kind: EventType,
    /// Object of the event.
    pub subject: Subject,
}

/// Object of an event. Addresses are compared and never dereferenced, because the object may no longer exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Subject {
    /// The device as a whole, or an object of a kind that this crate does not use.
    Device,
    /// A port.
    Port(u8),
    /// The queue pair at this address; see [`AsyncEvent::is_about`].
    QueuePair(usize),
    /// A completion queue, which has overflowed.
    CompletionQueue(usize),
}

impl AsyncEvent {
    /// Creates the event; its type selects the member of the C structure that identifies the object.
    pub(super) fn of(kind: EventType, port: i32, object: usize) -> AsyncEvent {
        let subject = match kind {
            EventType::CQ_ERR => Subject::CompletionQueue(object),
            EventType::QP_FATAL
            | EventType::QP_REQ_ERR
            | EventType::QP_ACCESS_ERR
            | EventType::COMM_EST
            | EventType::SQ_DRAINED
            | EventType::PATH_MIG
            | EventType::PATH_MIG_ERR
            | EventType::QP_LAST_WQE_REACHED => Subject::QueuePair(object),
            EventType::PORT_ACTIVE
            | EventType::PORT_ERR
            | EventType::LID_CHANGE
            | EventType::PKEY_CHANGE
            | EventType::SM_CHANGE
            | EventType::CLIENT_REREGISTER
            | EventType::GID_CHANGE => Subject::Port(port as u8),
            _ => Subject::Device,
        };
        AsyncEvent { kind, subject }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_say_what_they_are_about() {
        let subject = |kind| AsyncEvent::of(kind, 1, 4096).subject;
        assert_eq!(subject(EventType::PORT_ERR), Subject::Port(1));
        assert_eq!(subject(EventType::QP_FATAL), Subject::QueuePair(4096));
        assert_eq!(subject(EventType::CQ_ERR), Subject::CompletionQueue(4096));
        assert_eq!(subject(EventType::DEVICE_FATAL), Subject::Device);
        assert_eq!(subject(EventType(77)), Subject::Device);
    }
}
