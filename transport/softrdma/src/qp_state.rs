//! The permitted state transitions of queue pairs, and the attributes that each transition needs.
//!
//! The table is that of the InfiniBand specification, volume 1, section 11.2.5.2, as Linux enforces it.

use verbs_sys::{QpAttrMask as Mask, QpState as State, QpType};

/// The attributes that a transition requires, and those that it also accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transition {
    pub(crate) required: Mask,
    pub(crate) optional: Mask,
}

/// Attributes that every transition accepts.
const ALWAYS: Mask = Mask::STATE.with(Mask::CUR_STATE);
const PATH: Mask = Mask::ALT_PATH.with(Mask::PATH_MIG_STATE).with(Mask::ACCESS_FLAGS);

/// Returns the transition between two states, or `None` if it is not permitted.
pub(crate) fn transition(kind: QpType, from: State, to: State) -> Option<Transition> {
    let is_ud = kind == QpType::UD;
    let is_rc = kind == QpType::RC;
    let pick = |ud: Mask, connected: Mask, reliable: Mask| match kind {
        QpType::UD => ud,
        QpType::RC => connected | reliable,
        _ => connected,
    };
    let of = |required, optional| Some(Transition { required, optional });
    let port = Mask::PKEY_INDEX | Mask::PORT | if is_ud { Mask::QKEY } else { Mask::ACCESS_FLAGS };
    let running = pick(Mask::QKEY, PATH, Mask::MIN_RNR_TIMER);
    match (from, to) {
        (_, State::RESET | State::ERR) => of(Mask::NONE, Mask::NONE),
        (State::RESET, State::INIT) => of(port, Mask::NONE),
        (State::INIT, State::INIT) => of(Mask::NONE, port),
        (State::INIT, State::RTR) => of(
            pick(
                Mask::NONE,
                Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN,
                Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER,
            ),
            pick(
                Mask::PKEY_INDEX | Mask::QKEY,
                Mask::ALT_PATH | Mask::ACCESS_FLAGS | Mask::PKEY_INDEX,
                Mask::NONE,
            ),
        ),
        (State::RTR, State::RTS) => of(
            pick(
                Mask::SQ_PSN,
                Mask::SQ_PSN,
                Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC,
            ),
            running,
        ),
        (State::RTS | State::SQD, State::RTS) => of(Mask::NONE, running),
        (State::SQE, State::RTS) if !is_rc => of(Mask::NONE, running),
        (State::RTS, State::SQD) => of(Mask::NONE, Mask::EN_SQD_ASYNC_NOTIFY),
        (State::SQD, State::SQD) => of(
            Mask::NONE,
            pick(
                Mask::PKEY_INDEX | Mask::QKEY,
                PATH | Mask::AV | Mask::PKEY_INDEX,
                Mask::PORT
                    | Mask::TIMEOUT
                    | Mask::RETRY_CNT
                    | Mask::RNR_RETRY
                    | Mask::MAX_QP_RD_ATOMIC
                    | Mask::MAX_DEST_RD_ATOMIC
                    | Mask::MIN_RNR_TIMER,
            ),
        ),
        _ => None,
    }
}

/// Whether the transition is permitted with the attributes `given`.
pub(crate) fn is_allowed(kind: QpType, from: State, to: State, given: Mask) -> bool {
    transition(kind, from, to).is_some_and(|way| {
        given.contains(way.required) && !given.intersects(Mask(!(way.required | way.optional | ALWAYS).0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTR_UC: Mask = Mask::AV.with(Mask::PATH_MTU).with(Mask::DEST_QPN).with(Mask::RQ_PSN);
    const RTR_RC: Mask = RTR_UC.with(Mask::MAX_DEST_RD_ATOMIC).with(Mask::MIN_RNR_TIMER);

    #[test]
    fn every_required_member_is_required() {
        let init = Mask::STATE | Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS;
        for (kind, from, to, full) in [
            (QpType::RC, State::RESET, State::INIT, init),
            (QpType::UC, State::INIT, State::RTR, RTR_UC),
            (QpType::RC, State::INIT, State::RTR, RTR_RC),
            (QpType::UD, State::RTR, State::RTS, Mask::SQ_PSN),
        ] {
            assert!(is_allowed(kind, from, to, full | Mask::STATE));
            for bit in Mask::ALL.iter().filter(|bit| full.contains(**bit) && **bit != Mask::STATE) {
                assert!(!is_allowed(kind, from, to, full.without(*bit)), "{kind:?} {from:?} {to:?} {bit:?}");
            }
        }
    }

    #[test]
    fn members_of_other_services_are_refused() {
        assert!(!is_allowed(QpType::UC, State::INIT, State::RTR, RTR_RC));
        assert!(!is_allowed(QpType::UD, State::INIT, State::RTR, RTR_UC));
    }

    #[test]
    fn states_are_not_skipped() {
        assert_eq!(transition(QpType::RC, State::RESET, State::RTR), None);
        assert_eq!(transition(QpType::RC, State::INIT, State::RTS), None);
        assert_eq!(transition(QpType::RC, State::ERR, State::RTS), None);
        assert_eq!(transition(QpType::RC, State::SQE, State::RTS), None);
        for from in State::ALL {
            assert!(is_allowed(QpType::RC, *from, State::RESET, Mask::STATE));
            assert!(is_allowed(QpType::UD, *from, State::ERR, Mask::STATE));
        }
    }
}
