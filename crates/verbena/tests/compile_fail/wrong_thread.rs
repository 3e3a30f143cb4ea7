//! A simulation is one thread.
fn elsewhere(host: verbena::sim::Host) {
    std::thread::spawn(move || host.kill());
}

fn main() {}
