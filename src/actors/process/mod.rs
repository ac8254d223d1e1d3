//! A stage in a process of its own, or on a node of a cluster, seen from both sides.
//!
//! ```text
//!  parent                                             child: the same binary, `omni-actors stage`
//!  StageHandle -- RemoteStage --> Outbox --- down ---> StageHandle of the real stage, and its inbound edge
//!  next edge, AckSink, reports <------------- up ----- Outbox <-- its outbound edges, acks, reports, status
//!  ProcessSupervisor: spawns, sets up, watches, ends and replaces the child
//! ```
//!
//! A [link](omni_transfer::link) of each direction joins the two, each with one order: an admission is never overtaken
//! by its payloads. Where a stage is a process, its [`StageHandle`](super::StageHandle) speaks to a `RemoteStage` and
//! the edge that leads into it is an [`IntoStage`]; the other actors of the parent and those of the child are the same
//! as in threads.

mod conversation;
pub mod message;
mod nodes;
mod remote;
mod scarcity;
mod spawn;
mod supervisor;

pub use conversation::Ends;
pub use nodes::{NodeLink, NodeSeat, NodeSetup, Nodes, start_on_nodes};
pub use remote::IntoStage;
pub(super) use remote::RemoteStage;
pub use supervisor::{ProcessSetup, start};
