from speckey.thunder_import import thunder as _thunder
