// Follows new records of a page: asks every two seconds for what has arrived, and puts it on top of the table.
"use strict";

const ROWS_MAX = 500;
const EVERY_MS = 2000;

for (const button of document.querySelectorAll("button[data-tail]")) {
  const rows = document.getElementById("records");
  const state = document.getElementById("tail-state");
  let after = button.dataset.after;
  let follows = false;

  const look = async () => {
    if (!follows) return;
    try {
      const address = new URL(button.dataset.tail, location.href);
      address.searchParams.set("after", after);
      const answer = await fetch(address, { credentials: "same-origin" });
      if (!answer.ok) throw new Error(`the answer was ${answer.status}`);
      const found = await answer.json();
      after = found.after;
      if (follows) {
        rows.insertAdjacentHTML("afterbegin", found.rows);
        while (rows.rows.length > ROWS_MAX) rows.deleteRow(-1);
        state.textContent = "following";
      }
    } catch (error) {
      state.textContent = `trying again: ${error.message}`;
    }
    setTimeout(look, EVERY_MS);
  };

  button.hidden = false;
  button.addEventListener("click", () => {
    const begins = !follows;
    follows = begins;
    button.textContent = begins ? "Stop following" : "Follow new records";
    state.textContent = "";
    if (begins) look();
  });
}
