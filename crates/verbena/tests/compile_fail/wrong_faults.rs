//! The attribute's text is checked by the compiler.
#[verbena::test(faults = "loss=1")]
async fn loses(left: verbena::sim::Host) {}

#[verbena::test(seed = 7)]
async fn repeats(left: verbena::sim::Host) {}

#[verbena::test]
fn waits(left: verbena::sim::Host) {}

fn main() {}
