//! Streams that outlive their connections: a broken connection is replaced, over another path if there is
//! one, and no byte is lost, repeated or reordered.
//!
//! A [`Channel`] is one stream in each direction between two ranks. It has one connection at a time, which is
//! called its carrier. Both ends count the bytes of a stream; all positions are such counts.
//!
//! ```text
//! initiator                                             responder
//!   | stops its streams                                   |
//!   | -- connects, handshake: rank, lane, attempt ------> |  stops its streams
//!   |                                                     |  reads what the old carrier still holds
//!   | <-- verdict, bytes received, attempts that are void |
//!   | reads what the old carrier still holds              |
//!   | sends from where the responder has stopped          |
//!   | -- the bytes received ----------------------------> |  sends from where the initiator has stopped
//! ```
//!
//! A stopped end writes nothing to its old carrier, and counts no acknowledgement of it. So each end counts
//! its received bytes when the other end has stopped: no byte that the sender takes for received can come
//! later. All messages of this exchange are sealed with the keys of the handshake.
//!
//! The sender keeps a copy of short messages and of the ends of long ones until the peer's system has
//! acknowledged them ([`send_log`]). A long message is complete only when all but its end is acknowledged, so
//! its memory still holds what may have to be sent again.
//!
//! | module | content |
//! |---|---|
//! | `send_log`, `stream_out`, `stream_in` | retained bytes; sending and receiving side of a stream |
//! | `carrier` | interface of connections that carry streams |
//! | `socket_carrier`, `encrypted_carrier` | such connections over sockets, plain and encrypted |
//! | `channel`, `loss` | the states of a channel; reasons why a connection was given up |
//! | `table` | all channels of an endpoint |
//!
//! Not done here: making connections, which is up to the connector, and the choice of paths.

mod carrier;
mod channel;
mod encrypted_carrier;
mod loss;
mod send_log;
mod socket_carrier;
mod stream_in;
mod stream_out;
mod table;
#[cfg(test)]
mod tests;

pub(super) use channel::{Accepted, Answer, Failure, Phase};
pub(super) use loss::Loss;
pub(super) use socket_carrier::PendingSocket;
pub(super) use table::{ChannelTable, SharedChannel};
