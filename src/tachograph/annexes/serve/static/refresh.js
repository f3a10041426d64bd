"use strict";
// Parts of a page that follow its data: the page is read again every `data-refresh` seconds, and of the elements
// `data-part` those are replaced that have changed.
(() => {
  const whole = document.querySelector("[data-refresh]");
  const live = document.getElementById("live");
  const pause = document.getElementById("pause");
  const before = new Map([...document.querySelectorAll("[data-part]")].map((part) => [part.id, part.innerHTML]));
  let paused = false;

  function replace(part, html) {
    const focus = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    part.innerHTML = html; // made of a template that escapes what users write
    if (focus === null) return;
    for (const link of part.querySelectorAll("a")) if (link.getAttribute("href") === focus) return link.focus({ preventScroll: true });
  }

  // What a page shows that was not ready; its forms stay, with what was typed.
  function complete(main) {
    const focused = document.activeElement;
    const forms = document.querySelectorAll("main form");
    main.querySelectorAll("form").forEach((form, place) => form.replaceWith(forms[place] ?? form));
    document.querySelector("main").replaceChildren(...main.childNodes);
    focused?.focus({ preventScroll: true });
  }

  async function again() {
    if (paused || document.hidden) return;
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } }).catch(() => null);
    const current = answer !== null && answer.ok && !answer.redirected;
    if (live) live.textContent = current ? whole.dataset.connected : "not live: trying again";
    if (answer !== null && !current && whole.id === "pending") location.reload(); // says what went wrong, or logs in
    if (!current) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    let [focused, changed] = [document.activeElement.id, false];
    for (const part of document.querySelectorAll("[data-part]")) {
      const html = page.getElementById(part.id)?.innerHTML;
      if (html === undefined || before.get(part.id) === html) continue;
      before.set(part.id, html);
      replace(part, html);
      changed = true;
    }
    if (changed) document.dispatchEvent(new Event("refreshed"));
    if (changed && focused) document.getElementById(focused)?.focus({ preventScroll: true });
    if (page.querySelector("[data-refresh]")) return;
    clearInterval(timer); // the job has ended, or the page is ready
    if (whole.id === "pending") complete(page.querySelector("main"));
    whole.removeAttribute("data-refresh");
  }

  if (pause) {
    pause.hidden = false;
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.textContent = paused ? "Continue" : "Pause";
      live.textContent = paused ? "paused" : "";
      again();
    });
  }
  const timer = setInterval(again, 1000 * Number(whole.dataset.refresh));
})();
