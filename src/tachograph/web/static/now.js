"use strict";
// The page of the fleet: the server sends what changed, texts of elements by their id and whole sections.
(() => {
  const fleet = document.getElementById("fleet");
  if (!fleet || !window.EventSource) return;
  const live = document.getElementById("live");
  const pause = document.getElementById("pause");
  const AGAIN_MS = 15000;
  let since = fleet.dataset.since;
  let source = null;
  let paused = false;
  let timer = 0;

  function put(id, html) {
    const section = document.getElementById(id);
    if (!section) return;
    const focus = section.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    section.innerHTML = html; // made of a template that escapes what users write
    if (focus === null) return;
    for (const link of section.querySelectorAll("a")) if (link.getAttribute("href") === focus) return link.focus();
  }

  function take(event) {
    const got = JSON.parse(event.data);
    for (const id of Object.keys(got.sections)) put(id, got.sections[id]);
    for (const id of Object.keys(got.cells)) {
      const element = document.getElementById(id);
      if (!element) continue;
      element.textContent = got.cells[id];
      if (element.dataset.v !== undefined) element.dataset.v = got.cells[id];
    }
    since = event.lastEventId;
    fleet.dataset.since = since;
  }

  function close() {
    clearTimeout(timer);
    if (source) source.close();
    source = null;
  }

  function open() {
    close();
    if (paused || document.hidden) return;
    source = new EventSource(`${fleet.dataset.events}&since=${encodeURIComponent(since)}`);
    source.addEventListener("open", () => { live.textContent = fleet.dataset.connected; });
    source.addEventListener("fleet", take);
    source.addEventListener("error", () => {
      live.textContent = "not live: connecting again";
      if (source && source.readyState === EventSource.CLOSED) timer = setTimeout(open, AGAIN_MS);
    });
  }

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Continue" : "Pause";
    live.textContent = paused ? "paused" : "";
    open();
  });
  document.addEventListener("visibilitychange", open);
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  open();
})();
