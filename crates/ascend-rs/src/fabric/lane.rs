//! A lane: a thread that owns a communicator and does its jobs in order.

use super::{Run, lock, transport};
use crate::{Comm, Device, Error, Result, Stream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a wait sleeps before it looks whether another rank has failed.
const POLL: Duration = Duration::from_millis(100);

/// Makes the communicator on the lane's thread, when its device is bound.
pub(crate) type Maker = Box<dyn FnOnce(&Device) -> Result<Comm> + Send>;

/// What a job works with.
pub(crate) struct Worker {
    pub(crate) comm: Comm,
    pub(crate) stream: Stream,
}

type Job = Box<dyn FnOnce(Result<&Worker, &str>) + Send>;

/// The sending end of a lane.
pub(crate) struct Lane {
    run: Arc<Run>,
    jobs: Mutex<Option<Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A job's result in transit.
pub(crate) struct Reply<T> {
    what: String,
    result: Receiver<Result<T>>,
}

impl Lane {
    /// Starts the thread; it binds the device, makes the communicator and then waits for jobs.
    pub(crate) fn start(run: Arc<Run>, name: String, maker: Maker) -> ms_dist::Result<Arc<Lane>> {
        let (jobs, queue) = channel::<Job>();
        let (toolkit, device) = (run.toolkit.clone(), run.device);
        let body = move || {
            let made = || -> Result<Worker> {
                let device = Device::bind(&toolkit, device)?;
                let stream = Stream::new(&device)?;
                Ok(Worker { comm: maker(&device)?, stream })
            };
            match made() {
                Ok(worker) => queue.iter().for_each(|job| job(Ok(&worker))),
                Err(e) => {
                    let text = e.to_string();
                    queue.iter().for_each(|job| job(Err(&text)));
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(body)
            .map_err(|error| transport("hccl", Error::Io { what: "start a thread".to_owned(), error }))?;
        Ok(Arc::new(Lane { run, jobs: Mutex::new(Some(jobs)), thread: Mutex::new(Some(thread)) }))
    }

    /// Hands a job over. Its error is announced to all ranks.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        what: &str,
        job: impl FnOnce(&Worker) -> Result<T> + Send + 'static,
    ) -> ms_dist::Result<Reply<T>> {
        self.run.check()?;
        let (reply, result) = channel();
        let (run, name) = (self.run.clone(), what.to_owned());
        let job: Job = Box::new(move |worker| {
            let done = match worker {
                Ok(worker) => job(worker),
                Err(text) => Err(Error::Rendezvous(text.to_owned())),
            };
            if let Err(e) = &done {
                run.fail(&format!("{name}: {e}"));
            }
            // Nobody listens any more if the rank gave up.
            let _ = reply.send(done);
        });
        if let Some(jobs) = lock(&self.jobs).as_ref() {
            // A thread that is gone drops the reply, which the wait reports.
            let _ = jobs.send(job);
        }
        Ok(Reply { what: what.to_owned(), result })
    }
}

impl<T> Reply<T> {
    /// Waits for the job, or for the news that a rank has failed.
    pub(crate) fn wait(self, run: &Run) -> ms_dist::Result<T> {
        loop {
            match self.result.recv_timeout(POLL) {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(e)) => {
                    return match run.check() {
                        Err(ms_dist::Error::PeerFailed { rank, reason }) if rank != run.rank => {
                            Err(ms_dist::Error::PeerFailed { rank, reason })
                        }
                        _ => Err(transport(&self.what, e)),
                    };
                }
                Err(RecvTimeoutError::Timeout) => run.check()?,
                Err(RecvTimeoutError::Disconnected) => {
                    run.check()?;
                    let gone = Error::Rendezvous("the thread of this communicator ended".to_owned());
                    return Err(transport(&self.what, gone));
                }
            }
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        drop(lock(&self.jobs).take());
        // A lane of a failed run may wait for a time-out of the library; it ends by itself.
        if self.run.check().is_ok()
            && let Some(thread) = lock(&self.thread).take()
        {
            // A panic of the thread was reported to whoever waited for a job.
            let _ = thread.join();
        }
    }
}
