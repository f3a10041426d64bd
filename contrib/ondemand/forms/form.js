// Advice of Tachograph in the form of an interactive app: what earlier sessions of this app used, above its button.
//
// Append it to form.js of the app. It requests the advice of who is logged in, shows at most three lines, and changes
// no field. Where the service does not answer, the form is as without it.
"use strict";

(() => {
  const BASE = "/tachograph/"; // where the portal's proxy has the service
  const PREFIX = "ondemand/sys/dashboard/"; // of names of jobs: $OOD_PORTAL and the dashboard's path
  // attributes of the form, in the order in which they are looked for
  const PARTITION = ["auto_queues", "bc_queue", "partition"];
  const GPUS = ["num_gpus", "bc_num_gpus", "gpus", "gpu_count"];
  const MOST_LINES = 3;
  const WAIT_MS = 300; // after the last key
  const LIMIT_MS = 5000; // of a request

  const field = (names) =>
    names.map((name) => document.getElementById(`batch_connect_session_context_${name}`)).find(Boolean);

  const form = document.querySelector("form#new_batch_connect_session_context, form[action*='session_contexts']");
  const app = location.pathname.match(/batch_connect\/(.+?)\/session_contexts/);
  if (!form || !app) return;

  const note = document.createElement("div");
  note.id = "tachograph-advice";
  note.className = "alert alert-info";
  note.setAttribute("role", "status");
  note.hidden = true;
  const button = form.querySelector("[type=submit]");
  if (button) button.before(note);
  else form.append(note);

  let current = 0;

  const show = (advice) => {
    const lines = advice.lines.filter((line) => line.followed || (line.topic === "problems" && line.value));
    note.replaceChildren(
      ...lines.slice(0, MOST_LINES).map((line) => {
        const row = document.createElement("div");
        row.textContent = line.sentence;
        return row;
      }),
    );
    note.hidden = lines.length === 0;
  };

  const update = async () => {
    const request = (current += 1);
    const job = { name: PREFIX + app[1] };
    const [partition, gpus] = [field(PARTITION)?.value, field(GPUS)?.value];
    if (partition) job.partition = partition;
    if (/^\d+$/.test(gpus ?? "")) job.gpus = Number(gpus);
    try {
      const answer = await fetch(`${BASE}api/v1/advice`, {
        method: "POST",
        headers: { Accept: "application/json", "Content-Type": "application/json" },
        body: JSON.stringify(job),
        signal: AbortSignal.timeout(LIMIT_MS),
      });
      if (!answer.ok) throw new Error(answer.status);
      const advice = await answer.json();
      if (request === current) show(advice);
    } catch (problem) {
      if (request === current) note.hidden = true;
    }
  };

  let waiting;
  form.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(update, WAIT_MS);
  });
  update();
})();
