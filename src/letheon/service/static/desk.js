/* Optional script of the desk. Every page works without this file. */
"use strict";

(() => {
  const root = document.documentElement;
  root.classList.add("has-script");

  /* Theme: stored in a cookie, so that the server renders the right theme. */

  const systemIsDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = () => root.dataset.theme || (systemIsDark() ? "dark" : "light");

  function switchTheme() {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    document.cookie =
      `letheon_theme=${root.dataset.theme}; Path=/; Max-Age=31536000; SameSite=Strict`;
    document.dispatchEvent(new CustomEvent("desk:theme"));
  }

  /* Return a colour of the current theme as a plain value: canvas cannot read light-dark(). */
  function colour(name) {
    const probe = document.createElement("span");
    probe.hidden = true;
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const value = getComputedStyle(probe).color;
    probe.remove();
    return value;
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (!root.dataset.theme) document.dispatchEvent(new CustomEvent("desk:theme"));
  });

  /* Copying */

  async function copy(button) {
    const code = button.parentElement.querySelector("code");
    const label = button.querySelector("span");
    const before = label.textContent;
    try {
      await navigator.clipboard.writeText(code.textContent);
      label.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      label.textContent = "Press Ctrl+C";
    }
    setTimeout(() => { label.textContent = before; }, 2000);
  }

  /* Rows: j and k move through a list */

  const rows = () => [...document.querySelectorAll("table[data-rows] tbody tr")];
  const current = () => document.querySelector("table[data-rows] tr.is-current");

  function walk(step) {
    const all = rows();
    if (!all.length) return;
    const at = all.indexOf(current());
    const next = all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + step))];
    current()?.classList.remove("is-current");
    next.classList.add("is-current");
    next.querySelector("a")?.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }

  function tick(box, checked) {
    box.checked = checked;
    box.dispatchEvent(new Event("change", { bubbles: true }));
  }

  function selectRow() {
    const box = current()?.querySelector("input[type=checkbox]");
    if (box) tick(box, !box.checked);
  }

  function countSelected(form) {
    const boxes = [...form.querySelectorAll("td input[type=checkbox]")];
    const ticked = boxes.filter((box) => box.checked);
    const chosen = ticked.length;
    for (const button of form.querySelectorAll("[data-does]")) {
      const fits = (box) => (box.dataset.can ?? "").split(" ").includes(button.dataset.does);
      button.disabled = !ticked.some(fits);
    }
    for (const place of form.querySelectorAll("[data-selected]")) place.textContent = chosen;
    const all = form.querySelector("[data-select-all]");
    if (!all) return;
    all.checked = chosen > 0 && chosen === boxes.length;
    all.indeterminate = chosen > 0 && chosen < boxes.length;
  }

  /* Keys */

  const places = { h: "/", r: "/requests", m: "/models", c: "/certificates", a: "/audits" };
  let goes = false;

  function go(path) {
    const link = document.querySelector(`.side-nav a[href="${path}"], .side-nav a[href^="${path}?"]`);
    if (link) location.assign(link.href);
  }

  const keys = {
    "/": () => document.querySelector("[data-search]")?.focus(),
    "?": () => document.getElementById("keys")?.togglePopover(),
    j: () => walk(1),
    k: () => walk(-1),
    x: selectRow,
    t: switchTheme,
    n: () => document.querySelector("[data-new]")?.click(),
    g: () => { goes = true; setTimeout(() => { goes = false; }, 2000); },
  };

  /* Shortcuts can be switched off, for speech input for example; stored like the theme. */
  const keysAreOn = () => !document.cookie.includes("letheon_keys=off");

  function switchKeys(on) {
    document.cookie =
      `letheon_keys=${on ? "on" : "off"}; Path=/; Max-Age=31536000; SameSite=Strict`;
  }

  for (const box of document.querySelectorAll("[data-keys-switch]")) box.checked = keysAreOn();

  const isTyping = (target) => target.closest("input:not([type=checkbox]), textarea, select");

  /* Escape leaves a field and keeps its content; in the search field, the down arrow moves to the rows. */
  function leaveField(event) {
    const goesDown = event.key === "ArrowDown" && event.target.matches("[data-search]");
    if (event.key !== "Escape" && !goesDown) return;
    event.preventDefault();
    event.target.blur();
    if (goesDown) walk(1);
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (isTyping(event.target)) {
      leaveField(event);
      return;
    }
    if (!keysAreOn()) return;
    const act = goes && places[event.key] ? () => go(places[event.key]) : keys[event.key];
    if (!act) return;
    event.preventDefault();
    if (event.key !== "g") goes = false;
    act();
  });

  /* Events are delegated to the document, because parts of a page may be replaced. */

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy], [data-theme-switch], [data-toast]");
    if (!button) return;
    if (button.matches("[data-copy]")) copy(button);
    else if (button.matches("[data-theme-switch]")) switchTheme();
    else button.remove();
  });

  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.matches("[data-keys-switch]")) switchKeys(box.checked);
    const form = box.closest("form");
    if (!form) return;
    if (box.matches("[data-select-all]")) {
      for (const other of form.querySelectorAll("td input[type=checkbox]")) other.checked = box.checked;
    }
    if (form.matches("[data-selects]")) countSelected(form);
    if (box.matches("[data-submits]")) form.requestSubmit();
    if (box.matches("[data-chooses]")) choose(box);
  });

  /* Unused filters are left out, so that addresses stay short. */
  document.addEventListener("htmx:configRequest", (event) => {
    const sent = event.detail;
    if (sent.verb !== "get") return;
    for (const [name, value] of [...sent.parameters.entries()]) {
      if (value === "") sent.parameters.delete(name);
    }
  });

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "get" || form.hasAttribute("hx-get")) return;
    for (const field of form.elements) field.disabled ||= field.value === "";
  });

  /* A select whose options depend on another: data-chooses="#id", options with data-for. */
  function choose(box) {
    const other = document.querySelector(box.dataset.chooses);
    if (!other) return;
    for (const option of other.options) {
      option.hidden = option.disabled = !["", box.value].includes(option.dataset.for ?? "");
    }
    if (other.selectedOptions[0]?.disabled) {
      const free = [...other.options].filter((option) => !option.disabled);
      (free.find((option) => "default" in option.dataset) ?? free[0]).selected = true;
    }
  }

  for (const box of document.querySelectorAll("[data-chooses]")) choose(box);
  for (const form of document.querySelectorAll("[data-selects]")) countSelected(form);
  /* Error messages stay until they are clicked. */
  for (const toast of document.querySelectorAll("[data-toast]:not(.bad)")) {
    setTimeout(() => toast.remove(), 8000);
  }

  window.desk = { colour, theme };
})();
