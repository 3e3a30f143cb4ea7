#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| harness::net_file::run(bytes));
