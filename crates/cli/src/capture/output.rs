//! Where captured packets go: a file, files of a size each, or standard output.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use capture::file::{Device, Frame, Writer};

/// The file that is written now, and what came before it.
pub(super) struct Output {
    writer: Option<Writer<Box<dyn Write + Send>>>,
    /// `None`: standard output.
    path: Option<PathBuf>,
    program: String,
    snap_len: u32,
    /// Bytes of each file, and how many files stay.
    ring: Option<(u64, Option<u32>)>,
    written: u64,
    numbered: u32,
    files: VecDeque<PathBuf>,
    /// Devices so far: each file names all of them.
    devices: Vec<Device>,
    packets: u64,
}

impl Output {
    pub(super) fn new(
        path: &Path,
        program: &str,
        snap_len: u32,
        ring: Option<(u64, Option<u32>)>,
    ) -> io::Result<Self> {
        let is_stdout = path == Path::new("-");
        if is_stdout && ring.is_some() {
            return Err(io::Error::other("standard output is no ring of files"));
        }
        if is_stdout && io::stdout().is_terminal() {
            return Err(io::Error::other("standard output is a terminal"));
        }
        let mut output = Self {
            writer: None,
            path: (!is_stdout).then(|| path.to_owned()),
            program: program.to_owned(),
            snap_len,
            ring,
            written: 0,
            numbered: 0,
            files: VecDeque::new(),
            devices: Vec::new(),
            packets: 0,
        };
        output.begin()?;
        Ok(output)
    }

    pub(super) fn is_stdout(&self) -> bool {
        self.path.is_none()
    }

    /// Begins the next file.
    fn begin(&mut self) -> io::Result<()> {
        let to: Box<dyn Write + Send> = match self.next_path() {
            None => Box::new(BufWriter::new(io::stdout())),
            Some(path) => {
                let file = File::create(&path)?;
                self.files.push_back(path);
                Box::new(BufWriter::with_capacity(1 << 20, file))
            }
        };
        let mut writer = Writer::new(to, &self.program, self.snap_len)?;
        for device in &self.devices {
            writer.device(device)?;
        }
        (self.writer, self.written) = (Some(writer), 0);
        if let Some((_, Some(keep))) = self.ring
            && self.files.len() > keep as usize
            && let Some(oldest) = self.files.pop_front()
        {
            fs::remove_file(oldest)?;
        }
        Ok(())
    }

    /// The name of the next file: in a ring, that of the first with a number behind it.
    fn next_path(&mut self) -> Option<PathBuf> {
        let path = self.path.as_ref()?;
        if self.ring.is_none() {
            return Some(path.clone());
        }
        self.numbered += 1;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let end = path.extension().map(|end| format!(".{}", end.to_string_lossy())).unwrap_or_default();
        Some(path.with_file_name(format!("{stem}_{:05}{end}", self.numbered)))
    }

    /// Does something with the file. Where that fails a line says so, and nothing is written any
    /// more: the program goes on.
    fn write(&mut self, act: impl FnOnce(&mut Self) -> io::Result<()>) {
        if self.writer.is_some()
            && let Err(error) = act(self)
        {
            self.writer = None;
            eprintln!("verbena: {}: {error}; the capture ends here", self.name());
        }
    }

    fn name(&self) -> String {
        self.files.back().map_or_else(|| "standard output".into(), |path| path.display().to_string())
    }

    /// Adds a device; its number.
    pub(super) fn device(&mut self, device: Device) -> u32 {
        let number = self.devices.len() as u32;
        self.devices.push(device);
        self.write(|output| {
            let (writer, devices) = (output.writer.as_mut(), &output.devices);
            writer.zip(devices.last()).map_or(Ok(()), |(writer, device)| writer.device(device).map(drop))
        });
        number
    }

    pub(super) fn packet(&mut self, frame: &Frame) {
        self.write(|output| {
            if output.ring.is_some_and(|(size, _)| output.written + frame.len_in_file() > size) {
                output.begin()?;
            }
            output.written += frame.len_in_file();
            output.writer.as_mut().map_or(Ok(()), |writer| writer.packet(frame))?;
            output.packets += 1;
            Ok(())
        });
    }

    pub(super) fn flush(&mut self) {
        self.write(|output| output.writer.as_mut().map_or(Ok(()), Writer::flush));
    }

    /// Ends the file; what is missing is said in it and on standard error.
    pub(super) fn finish(&mut self, lost: &BTreeMap<u32, u64>, time: u64) {
        self.write(|output| {
            let Some(writer) = &mut output.writer else { return Ok(()) };
            for device in 0..output.devices.len() as u32 {
                writer.missing(device, time, lost.get(&device).copied().unwrap_or_default())?;
            }
            writer.flush()
        });
        let missing: u64 = lost.values().sum();
        let where_to = match self.files.len() {
            0 | 1 => self.name(),
            n => format!("{} and {} files before it", self.name(), n - 1),
        };
        eprint!("verbena: {} packets in {where_to}", self.packets);
        match missing {
            0 => eprintln!(),
            _ => eprintln!("; {missing} came too fast and are missing"),
        }
    }
}
