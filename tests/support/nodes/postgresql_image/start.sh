# As in the official image, root reads the file with the password, and the server runs as another user, who could not.
password="$(cat "$POSTGRES_PASSWORD_FILE")"
export password PGDATA=/var/lib/postgresql/data/own PATH="$(echo /usr/lib/postgresql/*/bin):$PATH"
chown postgres /var/lib/postgresql/data
exec setpriv --reuid postgres --regid postgres --clear-groups sh -eu -c '
    if [ ! -e "$PGDATA/made" ]; then
        umask 077
        printf %s "$password" > /tmp/password
        initdb --username "$POSTGRES_USER" --pwfile /tmp/password --auth scram-sha-256 --encoding UTF8 > /dev/null
        echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
        # While it is made, the database listens on a Unix socket alone.
        pg_ctl start --wait --options "-c listen_addresses=" > /dev/null
        PGPASSWORD="$password" createdb --username "$POSTGRES_USER" --maintenance-db postgres "$POSTGRES_DB"
        pg_ctl stop --wait > /dev/null
        rm /tmp/password
        touch "$PGDATA/made"
    fi
    exec postgres -c "listen_addresses=*"
'
