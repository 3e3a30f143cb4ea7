#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| harness::export_tables::run(bytes));
